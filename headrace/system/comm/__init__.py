"""Moving data between processes: endpoints, channels, mailboxes."""
