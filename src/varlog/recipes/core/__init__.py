"""What all recipes share: replicated state machines, commands, sessions, snapshots."""
