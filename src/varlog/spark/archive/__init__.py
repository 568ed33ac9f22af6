"""The archive of a topic: files, manifest, and reads of archive and log as one."""
