"""What only the operating system offers: functions of the C library, and a watchdog thread."""
