"""Graphs that are built node by node, as cuda.tile times its kernels: with memory of their own."""

from __future__ import annotations

import textwrap

from .test_driver import DRIVER

# The arguments are those of cuda.h.
GRAPHS = (
    DRIVER
    + """
from ctypes import c_char, c_float, c_uint

class Allocation(ctypes.Structure):
    _fields_ = [
        ("type", c_int), ("handles", c_int), ("location", c_int), ("device", c_int), ("win32", c_void_p),
        ("most", c_size_t), ("flags", c_char * 56), ("access", c_void_p), ("accesses", c_size_t),
        ("size", c_size_t), ("address", u64),
    ]

class Memset(ctypes.Structure):
    _fields_ = [
        ("target", u64), ("pitch", c_size_t), ("value", c_uint), ("element", c_uint), ("width", c_size_t),
        ("height", c_size_t),
    ]

class Kernel(ctypes.Structure):
    _fields_ = [
        ("function", c_void_p), ("grid", c_uint * 3), ("block", c_uint * 3), ("shared", c_uint),
        ("arguments", c_void_p), ("extra", c_void_p), ("kernel", c_void_p), ("context", c_void_p),
    ]

def new_graph():
    graph = c_void_p()
    call("cuGraphCreate", byref(graph), 0)
    return graph

def add(kind, graph, *arguments):
    node = c_void_p()
    call("cuGraphAdd" + kind, byref(node), graph, None, c_size_t(0), *arguments)
    return node

def allocation(graph, size):
    what = Allocation(type=1, location=1, device=0, size=size)
    add("MemAllocNode", graph, byref(what))
    return u64(what.address)

def executable(graph):
    made = c_void_p()
    call("cuGraphInstantiateWithFlags", byref(made), graph, u64(0))
    return made

before = used()
"""
)


def test_the_memory_of_a_graph_is_taken_by_its_launch_and_kept_until_it_is_trimmed(phantom):
    ran = phantom.run(
        GRAPHS
        + textwrap.dedent("""
        first, second, kept = new_graph(), new_graph(), new_graph()
        address = allocation(first, 40 * MiB)
        add("MemsetNode", first, byref(Memset(address, 40 * MiB, 7, 1, 40 * MiB, 1)), context)
        add("MemFreeNode", first, address)
        inner = [allocation(second, 30 * MiB), allocation(second, 31 * MiB)]
        for address in inner:
            add("MemFreeNode", second, address)
        for _ in range(3):
            address = allocation(kept, 10 * MiB)
        seen = [used()]
        launches = [executable(graph) for graph in (first, second, kept)]
        seen.append(used())
        for launch in (launches[0], launches[0], launches[1], launches[0], launches[2]):
            call("cuGraphLaunch", launch, None)
            seen.append(used())
        call("cuDeviceGraphMemTrim", 0)
        seen.append(used())
        print(json.dumps([mebibytes - before for mebibytes in seen]))
        """)
    )
    # 31 MiB are sixteen pages of 2 MiB; the second graph takes the first one's memory and 22 MiB more; what
    # the third does not free stays.
    assert ran.result == [0, 0, 40, 40, 62, 62, 62, 30]


def test_a_graph_that_needs_more_than_the_device_has_fails_when_it_is_launched(phantom):
    ran = phantom.run(
        GRAPHS
        + textwrap.dedent("""
        graph = new_graph()
        allocation(graph, 8 << 30), allocation(graph, 8 << 30)
        print(json.dumps([cuda.cuGraphLaunch(executable(graph), None), used() - before]))
        """),
        gpu="rtx-3060",
    )
    assert ran.result == [2, 8 << 10]


def test_kernels_and_events_of_a_graph(phantom):
    ran = phantom.run(
        GRAPHS
        + textwrap.dedent("""
        image = b'.version 8.0\\n.target sm_80\\n.address_size 64\\n.visible .entry nothing() { ret; }\\0'
        library, kernel = c_void_p(), c_void_p()
        call("cuLibraryLoadData", byref(library), image, None, None, 0, None, None, 0)
        call("cuLibraryGetKernel", byref(kernel), library, b"nothing")
        begin, end, graph, child = c_void_p(), c_void_p(), new_graph(), new_graph()
        call("cuEventCreate", byref(begin), 0)
        call("cuEventCreate", byref(end), 0)

        def node(threads):
            what = Kernel(grid=(5, 1, 1), block=(threads, 1, 1), kernel=kernel, context=context)
            made = c_void_p()
            return cuda.cuGraphAddKernelNode_v2(byref(made), graph, None, c_size_t(0), byref(what)), made.value

        add("EventRecordNode", graph, begin)
        errors = [node(256), node(2048)]
        add("EventRecordNode", graph, end)
        add("EmptyNode", child)
        add("ChildGraphNode", graph, child)
        count, milliseconds, device = c_size_t(), c_float(), c_int(-1)
        call("cuGraphGetNodes", graph, None, byref(count))
        call("cuGraphLaunch", executable(graph), None)
        call("cuEventElapsedTime", byref(milliseconds), begin, end)
        call("cuCtxGetDevice_v2", byref(device), context)
        print(json.dumps([errors, count.value, milliseconds.value > 0, device.value]))
        """),
        gpu="rtx-4090",
    )
    # The kernel is the graph's second node; one of more threads than a block has is none.
    assert ran.result == [[[0, 2], [1, None]], 4, True, 0]
