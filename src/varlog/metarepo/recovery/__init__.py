"""What is known of the order outside the store, and the rebuild of a lost store."""
