"""The archive of a topic: its files, its manifest, and reads of archive and live log as one."""
