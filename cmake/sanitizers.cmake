# XMEM_SANITIZE="address;undefined" instruments everything that is built.
if(XMEM_SANITIZE)
  list(JOIN XMEM_SANITIZE "," sanitizer_list)
  add_compile_options(-fsanitize=${sanitizer_list} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${sanitizer_list})
endif()
