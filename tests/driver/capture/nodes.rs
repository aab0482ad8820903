//! Nodes built by hand: copies of boxes, nodes of any kind through one structure, and the parameters that nodes report.

use crate::capture::fixture::*;
use gpumem_tests::cases;
use std::ffi::c_void;

const SIZE_BYTES: usize = 64;

cases! {
    /// A copy node copies a box of several slices.
    #[serial_test::serial]
    fn a_box_as_a_node(driver: &Driver) {
        let fixture = Fixture::new(driver);
        let (a, b) = (fixture.raw.alloc(SIZE_BYTES).unwrap(), fixture.raw.alloc(SIZE_BYTES).unwrap());
        let (mut graph, mut node) = (null_mut(), null_mut());
        let copy = boxes(a, b);
        let bytes: Vec<u8> = (0..SIZE_BYTES as u8).collect();
        // SAFETY: the locals outlive the calls, and the memory outlives the launches.
        unsafe {
            fixture.cuMemcpyHtoD_v2(a, bytes.as_ptr().cast(), SIZE_BYTES).unwrap();
            fixture.cuMemsetD8_v2(b, 0xff, SIZE_BYTES).unwrap();
            fixture.cuCtxSynchronize().unwrap();
            fixture.cuGraphCreate(&mut graph, 0).unwrap();
            fixture.cuGraphAddMemcpyNode(&mut node, graph, null(), 0, &copy, fixture.raw.context).unwrap();
        }
        let exec = fixture.instantiate(graph);
        fixture.launch(exec);
        fixture.sync();
        let copied = fixture.raw.read(b, SIZE_BYTES).unwrap();
        for (at, byte) in copied.into_iter().enumerate() {
            // Two slices of three rows of two bytes.
            let (slice, row, column) = (at / 32, at % 32 / 8, at % 8);
            let is_inside = slice < 2 && row < 3 && column < 2;
            assert_eq!(byte, if is_inside { at as u8 } else { 0xff }, "{at}");
        }
        fixture.destroy_exec(exec);
        fixture.destroy(graph);
        fixture.free([a, b]);
    }

    /// Memset, copy and host function nodes report their parameters; so do allocation and free nodes.
    #[serial_test::serial]
    fn parameters_of_nodes(driver: &Driver) {
        let fixture = Fixture::new(driver);
        let (a, b) = (fixture.raw.alloc(SIZE_BYTES).unwrap(), fixture.raw.alloc(SIZE_BYTES).unwrap());
        let mut graph = null_mut();
        let [mut fill, mut copied, mut called, mut alloc, mut free] = [null_mut(); 5];
        let wish = CUDA_MEMSET_NODE_PARAMS {
            dst: a, pitch: 0, value: 3, elementSize: 2, width: 4, height: 1,
        };
        let copy = boxes(a, b);
        let host = CUDA_HOST_NODE_PARAMS { fn_: Some(nothing), userData: null_mut() };
        let mut memory = CUDA_MEM_ALLOC_NODE_PARAMS::default();
        memory.poolProps.allocType = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        memory.poolProps.location.type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        memory.poolProps.location.id = fixture.raw.device;
        memory.bytesize = 1 << 20;
        // SAFETY: the locals outlive the calls.
        unsafe {
            fixture.cuGraphCreate(&mut graph, 0).unwrap();
            fixture.cuGraphAddMemsetNode(&mut fill, graph, null(), 0, &wish, fixture.raw.context).unwrap();
            fixture.cuGraphAddMemcpyNode(&mut copied, graph, &fill, 1, &copy, fixture.raw.context).unwrap();
            fixture.cuGraphAddHostNode(&mut called, graph, &copied, 1, &host).unwrap();
            fixture.cuGraphAddMemAllocNode(&mut alloc, graph, &called, 1, &mut memory).unwrap();
            fixture.cuGraphAddMemFreeNode(&mut free, graph, &alloc, 1, memory.dptr).unwrap();

            let mut node_params = CUDA_MEMSET_NODE_PARAMS::default();
            fixture.cuGraphMemsetNodeGetParams(fill, &mut node_params).unwrap();
            assert_eq!((node_params.dst, node_params.value, node_params.elementSize, node_params.width, node_params.height), (a, 3, 2, 4, 1));
            let mut node_params = CUDA_MEMCPY3D::default();
            fixture.cuGraphMemcpyNodeGetParams(copied, &mut node_params).unwrap();
            assert_eq!((node_params.srcDevice, node_params.dstDevice), (a, b));
            assert_eq!((node_params.WidthInBytes, node_params.Height, node_params.Depth), (2, 3, 2));
            assert_eq!((node_params.srcPitch, node_params.dstPitch, node_params.srcHeight, node_params.dstHeight), (8, 8, 4, 4));
            let mut node_params = CUDA_HOST_NODE_PARAMS { fn_: None, userData: (&raw mut graph).cast() };
            fixture.cuGraphHostNodeGetParams(called, &mut node_params).unwrap();
            assert!(node_params.fn_.is_some() && node_params.userData.is_null());
            let mut node_params = CUDA_MEM_ALLOC_NODE_PARAMS::default();
            fixture.cuGraphMemAllocNodeGetParams(alloc, &mut node_params).unwrap();
            assert_eq!((node_params.dptr, node_params.bytesize), (memory.dptr, 1 << 20));
            assert_eq!(node_params.poolProps.location.id, fixture.raw.device);
            let mut address = 0;
            fixture.cuGraphMemFreeNodeGetParams(free, &mut address).unwrap();
            assert_eq!(address, memory.dptr);
        }
        fixture.destroy(graph);
        fixture.free([a, b]);
    }

    /// One call adds nodes of any kind; another one changes their parameters.
    #[serial_test::serial]
    fn nodes_of_any_kind(driver: &Driver) {
        let fixture = Fixture::new(driver);
        let (a, b) = (fixture.raw.alloc(SIZE_BYTES).unwrap(), fixture.raw.alloc(SIZE_BYTES).unwrap());
        let mut graph = null_mut();
        let [mut fill, mut copied, mut recorded] = [null_mut(); 3];
        let mut wish = CUgraphNodeParams { type_: CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMSET, ..Default::default() };
        wish.__bindgen_anon_1.memset = CUDA_MEMSET_NODE_PARAMS_v2 {
            dst: a, pitch: 0, value: 5, elementSize: 1, width: SIZE_BYTES, height: 1, ctx: fixture.raw.context,
        };
        let mut copy = CUgraphNodeParams { type_: CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMCPY, ..Default::default() };
        copy.__bindgen_anon_1.memcpy = CUDA_MEMCPY_NODE_PARAMS {
            flags: 0, reserved: 0, copyCtx: fixture.raw.context, copyParams: boxes(a, b),
        };
        let mut record = CUgraphNodeParams { type_: CUgraphNodeType::CU_GRAPH_NODE_TYPE_EVENT_RECORD, ..Default::default() };
        record.__bindgen_anon_1.eventRecord = CUDA_EVENT_RECORD_NODE_PARAMS { event: fixture.event };
        // SAFETY: the locals outlive the calls, and the memory outlives the launches.
        unsafe {
            fixture.cuMemsetD8_v2(b, 0, SIZE_BYTES).unwrap();
            fixture.cuCtxSynchronize().unwrap();
            fixture.cuGraphCreate(&mut graph, 0).unwrap();
            fixture.cuGraphAddNode(&mut fill, graph, null(), 0, &mut wish).unwrap();
            fixture.cuGraphAddNode_v2(&mut copied, graph, &fill, null(), 1, &mut copy).unwrap();
            fixture.cuGraphAddNode_v2(&mut recorded, graph, &copied, null(), 1, &mut record).unwrap();
        }
        assert_eq!(
            fixture.types(graph),
            [
                CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMSET,
                CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMCPY,
                CUgraphNodeType::CU_GRAPH_NODE_TYPE_EVENT_RECORD,
            ]
        );
        let exec = fixture.instantiate(graph);
        fixture.launch(exec);
        fixture.sync();
        assert_eq!(fixture.raw.read(b, 3).unwrap(), [5, 5, 0]);
        // SAFETY: node and graph are alive, the parameters outlive the calls, and the memory outlives the launches.
        unsafe {
            wish.__bindgen_anon_1.memset.value = 6;
            fixture.cuGraphNodeSetParams(fill, &mut wish).unwrap();
            wish.__bindgen_anon_1.memset.value = 7;
            fixture.cuGraphExecNodeSetParams(exec, fill, &mut wish).unwrap();
            let mut node_params = CUDA_MEMSET_NODE_PARAMS::default();
            fixture.cuGraphMemsetNodeGetParams(fill, &mut node_params).unwrap();
            assert_eq!(node_params.value, 6);
        }
        fixture.launch(exec);
        fixture.sync();
        assert_eq!(fixture.raw.read(b, 3).unwrap(), [7, 7, 0]);
        fixture.destroy_exec(exec);
        fixture.destroy(graph);
        fixture.free([a, b]);
    }
}

unsafe extern "C" fn nothing(_: *mut c_void) {}

/// Two slices of three rows of two bytes, in memory with rows of eight bytes and slices of four rows.
fn boxes(source: u64, target: u64) -> CUDA_MEMCPY3D {
    let mut copy = CUDA_MEMCPY3D::default();
    (copy.srcMemoryType, copy.srcDevice) = (CUmemorytype::CU_MEMORYTYPE_DEVICE, source);
    (copy.dstMemoryType, copy.dstDevice) = (CUmemorytype::CU_MEMORYTYPE_DEVICE, target);
    (copy.srcPitch, copy.dstPitch, copy.srcHeight, copy.dstHeight) = (8, 8, 4, 4);
    (copy.WidthInBytes, copy.Height, copy.Depth) = (2, 3, 2);
    copy
}
