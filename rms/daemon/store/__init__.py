"""The state folder: journal, snapshots, private files, sandboxes; and the records in memory."""
