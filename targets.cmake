# How libraries, programs and tests are compiled: causeway_library, causeway_program, causeway_test.

# Headers that are read once for many files. A file still includes what it uses: the sanitizers' presets, clang and CUDA
# read no precompiled header. The lists are short because each file pays for all that is in them: JSON, logging and the
# service's stubs cost more in files without than they save in files with them. `plain` is also without protobuf, so that
# a change of a message compiles no file that knows none.
set(PLAIN_HEADERS <algorithm> <array> <chrono> <cmath> <cstdint> <cstring> <deque> <functional> <map> <memory> <optional>
    <set> <span> <string> <string_view> <utility> <variant> <vector>
    [["absl/status/statusor.h"]] [["absl/strings/str_cat.h"]])
set(SERVICE_HEADERS ${PLAIN_HEADERS} <grpcpp/grpcpp.h> [["causeway/v1/coordinator.pb.h"]])
set(TEST_HEADERS ${PLAIN_HEADERS} <gmock/gmock.h> <gtest/gtest.h>)

# causeway_headers(name [ARITHMETIC] HEADERS … DEPENDS …): makes the headers that causeway_precompiled uses.
function(causeway_headers name)
  cmake_parse_arguments(ARG "ARITHMETIC" "" "HEADERS;DEPENDS" ${ARGN})
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/headers/${name}.cc CONTENT "// Reads the headers.\n")
  add_library(causeway_headers_${name} OBJECT ${CMAKE_BINARY_DIR}/headers/${name}.cc)
  target_precompile_headers(causeway_headers_${name} PRIVATE ${ARG_HEADERS})
  target_link_libraries(causeway_headers_${name} PRIVATE ${ARG_DEPENDS})
  causeway_level(causeway_headers_${name} ${ARG_ARITHMETIC})
endfunction()

# causeway_precompiled(target name [is_service]): has it read the list of that name, or `service` where that is true.
function(causeway_precompiled target name)
  if(ARGV2)
    set(name service)
  endif()
  target_precompile_headers(${target} REUSE_FROM causeway_headers_${name})
endfunction()

# Debug information and sanitizers have levels of their own (CMakePresets.json).
function(causeway_level target arithmetic)
  if(arithmetic)
    target_compile_options(${target} PRIVATE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O3>)
  endif()
endfunction()

# causeway_library(name [ARITHMETIC | SERVICE] SOURCES a.cc … [APART b.cc …] DEPENDS x y …): one static library per folder.
# ARITHMETIC: it computes on values, and is compiled for speed. SERVICE: it uses gRPC and the messages. APART: in no batch,
# since it has flags of its own, or is generated.
function(causeway_library name)
  cmake_parse_arguments(ARG "ARITHMETIC;SERVICE" "" "SOURCES;APART;DEPENDS" ${ARGN})
  if(CAUSEWAY_BATCHES)
    causeway_batches(ARG_SOURCES ${name} 12 ${ARG_SOURCES})
  endif()
  add_library(causeway_${name} STATIC ${ARG_SOURCES} ${ARG_APART})
  target_link_libraries(causeway_${name} PUBLIC ${ARG_DEPENDS})
  causeway_level(causeway_${name} ${ARG_ARITHMETIC})
  set(headers plain)
  if(ARG_ARITHMETIC)
    set(headers arithmetic)
  endif()
  causeway_precompiled(causeway_${name} ${headers} ${ARG_SERVICE})
endfunction()

# causeway_program(name [WITHOUT_MAIN] DEPENDS x y …): main.cc here, unless a library brings it. `cmake --install` puts it
# into bin (component `programs`), and `pip install` into the package, where pyproject.toml has it among its targets;
# python/causeway/_programs.py starts it.
function(causeway_program name)
  cmake_parse_arguments(ARG "WITHOUT_MAIN" "" "DEPENDS" ${ARGN})
  add_executable(${name})
  if(NOT ARG_WITHOUT_MAIN)
    target_sources(${name} PRIVATE main.cc)
    causeway_precompiled(${name} service)
  endif()
  target_link_libraries(${name} PRIVATE ${ARG_DEPENDS})
  set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
  install(TARGETS ${name} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT programs)
  if(SKBUILD)
    install(TARGETS ${name} RUNTIME DESTINATION causeway/bin COMPONENT python OPTIONAL)
  endif()
endfunction()

# causeway_batches(variable name size a.cc …): files that include `size` each, by paths below the source folder: those that CMake
# itself writes (UNITY_BUILD) have absolute ones, which another clone's files have not, so that ccache misses them.
function(causeway_batches variable name size)
  file(RELATIVE_PATH folder ${CMAKE_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  set(batches)
  while(ARGN)
    list(SUBLIST ARGN 0 ${size} batch)
    list(REMOVE_ITEM ARGN ${batch})
    list(TRANSFORM batch REPLACE "(.+)" "#include \"${folder}/\\1\"\n")
    list(JOIN batch "" text)
    list(LENGTH batches index)
    set(file ${CMAKE_CURRENT_BINARY_DIR}/${name}_${index}.cc)
    file(CONFIGURE OUTPUT ${file} CONTENT "${text}" @ONLY)
    list(APPEND batches ${file})
  endwhile()
  set(${variable} ${batches} PARENT_SCOPE)
endfunction()

# causeway_test(name [SERVICE] [UNITY] SOURCES a_test.cc … DEPENDS x y … [LABELS tsan …]): one GoogleTest program, one
# ctest entry each case. With UNITY eight files are compiled as one: their helpers have different names then.
function(causeway_test name)
  cmake_parse_arguments(ARG "SERVICE;UNITY" "" "SOURCES;DEPENDS;LABELS" ${ARGN})
  if(ARG_UNITY)
    causeway_batches(ARG_SOURCES ${name} 8 ${ARG_SOURCES})
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPENDS} test_folders GTest::gmock GTest::gtest_main)
  causeway_precompiled(${name} test ${ARG_SERVICE})
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 300 LABELS "${ARG_LABELS}")
endfunction()

# causeway_test_program(name [SERVICE] [UNITY] SOURCES a.cc … DEPENDS x y …): a program that tests start.
function(causeway_test_program name)
  cmake_parse_arguments(ARG "SERVICE;UNITY" "" "SOURCES;DEPENDS" ${ARGN})
  if(ARG_UNITY)
    causeway_batches(ARG_SOURCES ${name} 8 ${ARG_SOURCES})
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPENDS})
  causeway_precompiled(${name} plain ${ARG_SERVICE})
endfunction()

# causeway_benchmark(name [SERVICE] SOURCES a.cc … DEPENDS x y …): a program that a script of tests/bench drives. Nothing
# builds it but `cmake --build build/release --target benchmarks`.
add_custom_target(benchmarks)
function(causeway_benchmark name)
  causeway_test_program(${name} ${ARGN})
  set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON)
  add_dependencies(benchmarks ${name})
endfunction()

causeway_headers(arithmetic ARITHMETIC HEADERS ${PLAIN_HEADERS})
causeway_headers(plain HEADERS ${PLAIN_HEADERS})
causeway_headers(test HEADERS ${TEST_HEADERS} DEPENDS GTest::gmock)
if(proto IN_LIST FOLDERS)
  causeway_headers(service HEADERS ${SERVICE_HEADERS} DEPENDS causeway_proto gRPC::grpc++)
endif()
