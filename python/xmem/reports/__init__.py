"""Reports: one finished result in, one text out. A report computes nothing and reads no trace."""
