"""What an encoding costs on this machine: `adapos profile`, from its options to tables and a page."""
