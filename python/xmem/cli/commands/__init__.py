"""The commands of xmem-fast, one file each."""
