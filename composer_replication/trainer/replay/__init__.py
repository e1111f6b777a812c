"""Channel 3's pairs: rendered, scored once by the reference policy, drawn in an order of their own."""
