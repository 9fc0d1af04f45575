"""Arrays of any library: what lies where, results made in the caller's own kind, and Heddle's ops on them."""
