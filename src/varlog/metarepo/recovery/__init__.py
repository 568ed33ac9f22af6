"""What is known of the order outside the store, and how a lost store is rebuilt."""
