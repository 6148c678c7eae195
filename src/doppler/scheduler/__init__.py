"""The work-conserving scheduler, without a clock."""
