"""Reports: each turns one finished result into one text. A report computes nothing and reads no trace."""
