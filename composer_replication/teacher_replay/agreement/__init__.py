"""Whether actions are the same: comparers, clusters of equal actions, and the vote over them."""
