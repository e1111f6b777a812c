"""Shell commands: read as a shell reads them, and put in a form in which equal commands are equal."""
