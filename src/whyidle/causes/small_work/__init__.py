"""Too little parallel work: the launch queue runs dry."""
