/* Nothing of its own: see CMakeLists.txt. */
int xmem_phantom_stub(void) { return 0; }
