"""What a trace says about a run, and the blocks of one device, which all later steps transform."""
