# Third-party sources come from wheels of the build environment; nothing is downloaded here.
find_package(Threads REQUIRED)
# Python3 is the interpreter that runs during the build; Python, below, is what the binding is built for.
find_package(Python3 3.11 COMPONENTS Interpreter REQUIRED)

# simdjson: the pysimdjson wheel ships simdjson.h and simdjson.cpp; ask the build interpreter where they lie.
execute_process(
  COMMAND ${Python3_EXECUTABLE} -c
    "import importlib.util, pathlib; print(pathlib.Path(importlib.util.find_spec('simdjson').origin).parent)"
  OUTPUT_VARIABLE XMEM_SIMDJSON_DIR OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE simdjson_result)
if(simdjson_result OR NOT EXISTS ${XMEM_SIMDJSON_DIR}/simdjson.cpp)
  message(FATAL_ERROR "simdjson's sources were not found beside ${Python3_EXECUTABLE}: pip install pysimdjson")
endif()
add_library(simdjson STATIC ${XMEM_SIMDJSON_DIR}/simdjson.cpp)
target_include_directories(simdjson SYSTEM PUBLIC ${XMEM_SIMDJSON_DIR})
# Window-sized documents are parsed on the calling thread; simdjson's own threads are not used.
target_compile_definitions(simdjson PUBLIC SIMDJSON_THREADS_ENABLED=0)
if(XMEM_SANITIZE)  # Under sanitizers each implementation takes half a minute to compile; they are tried on one of them.
  target_compile_definitions(simdjson PUBLIC SIMDJSON_IMPLEMENTATION_ICELAKE=0 SIMDJSON_IMPLEMENTATION_WESTMERE=0)
endif()

if(XMEM_BUILD_PYTHON)
  if(CMAKE_CROSSCOMPILING)
    find_package(Python 3.11 COMPONENTS Development.Module REQUIRED)
  else()
    find_package(Python 3.11 COMPONENTS Interpreter Development.Module REQUIRED)
  endif()
  execute_process(
    COMMAND ${Python3_EXECUTABLE} -m pybind11 --cmakedir
    OUTPUT_VARIABLE pybind11_DIR OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  find_package(pybind11 CONFIG REQUIRED)
endif()
