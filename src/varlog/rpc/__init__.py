"""Layer 2: messages and transport. Knows no service and no storage."""
