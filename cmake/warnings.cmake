# Warnings for our own targets; errors only when a developer asks for them.
function(xmem_set_warnings target)
  if(MSVC)
    target_compile_options(${target} PRIVATE /W3 /utf-8)
    return()
  endif()
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wconversion
    -Wsign-conversion -Wnon-virtual-dtor -Woverloaded-virtual -Wold-style-cast)
  if(XMEM_WARNINGS_AS_ERRORS)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
endfunction()
