//! Modules, functions and launches.

use crate::base::codes::{Answer, INVALID_HANDLE, INVALID_VALUE, NOT_FOUND, NOT_SUPPORTED};
use crate::base::handle::Handle;
use crate::device::compiler_options::CompilerOptions;
use crate::device::image::ImageError;
use crate::device::module::Shape;
use crate::entry::argument::{Source, Target, check_place, put, put_if_wanted, take, take_at};
use crate::entry::call::Call;
use crate::entry::entries;
use crate::entry::image::{bytes, compiler_options, file, parse, text};
use crate::machine::Machine;
use core::ffi::{c_char, c_int, c_uint, c_void};
use core::ptr::null_mut;
use gpumem_ptx::Entry;
use gpumem_sys::Table;
use gpumem_sys::types::{
    CUdeviceptr, CUfunction, CUfunction_attribute, CUfunctionLoadingState, CUjit_option, CUlaunchAttributeID,
    CUlaunchAttributeValue_union__bindgen_ty_1 as ClusterDimension, CUlaunchConfig, CUmodule,
    CUmoduleLoadingMode, CUresult, CUstream,
};

entries! {
    fn cuModuleLoad(call, target: Target<CUmodule>, path: *const c_char) {
        check_place(target)?;
        let context = call.context(call.thread)?;
        // SAFETY: the caller has a string there that ends in NUL.
        let image = unsafe { file(path)? };
        let parsed = parse(call, &mut CompilerOptions::default(), &image)?;
        put(target, call.module_load(context, parsed)?.to_ptr())
    }

    fn cuModuleLoadData(call, target: Target<CUmodule>, image: *const c_void) {
        check_place(target)?;
        let context = call.context(call.thread)?;
        // SAFETY: the caller has an image there.
        let image = unsafe { bytes(image)? };
        let parsed = parse(call, &mut CompilerOptions::default(), image)?;
        put(target, call.module_load(context, parsed)?.to_ptr())
    }

    fn cuModuleLoadFatBinary(call, target: Target<CUmodule>, image: *const c_void) {
        check_place(target)?;
        let context = call.context(call.thread)?;
        // SAFETY: the caller has an image there.
        let image = unsafe { bytes(image)? };
        let parsed = parse(call, &mut CompilerOptions::default(), image)?;
        put(target, call.module_load(context, parsed)?.to_ptr())
    }

    fn cuModuleLoadDataEx(
        call,
        target: Target<CUmodule>,
        image: *const c_void,
        option_count: c_uint,
        options: *mut CUjit_option,
        option_values: *mut *mut c_void,
    ) {
        check_place(target)?;
        let context = call.context(call.thread)?;
        // SAFETY: there are as many options, each with its value, and the image is the caller's.
        let (mut options, image) =
            unsafe { (compiler_options(option_count, options, option_values)?, bytes(image)?) };
        let parsed = parse(call, &mut options, image);
        // SAFETY: the buffers are the caller's for this call.
        unsafe { options.write() };
        put(target, call.module_load(context, parsed?)?.to_ptr())
    }

    fn cuModuleUnload(call, module: CUmodule) {
        call.context(call.thread)?;
        call.module_unload_by_program(Handle::from_ptr(module))
    }

    fn cuModuleGetGlobal_v2(
        call,
        address: Target<CUdeviceptr>,
        size_bytes: Target<usize>,
        module: CUmodule,
        name: *const c_char,
    ) {
        call.context(call.thread)?;
        // SAFETY: the caller has a string there that ends in NUL.
        let name = unsafe { text(name)? }.to_str().map_err(|_| NOT_FOUND)?;
        let found = call.module_global(Handle::from_ptr(module), name)?;
        put_if_wanted(address, found.0)?;
        put_if_wanted(size_bytes, found.1 as usize)
    }

    // The context is the module's. candle calls this on threads that have no current one.
    fn cuModuleGetFunction(call, target: Target<CUfunction>, module: CUmodule, name: *const c_char) {
        // SAFETY: the caller has a string there that ends in NUL.
        let name = unsafe { text(name)? }.to_str().map_err(|_| NOT_FOUND)?;
        put(target, call.module_function(Handle::from_ptr(module), name)?.to_ptr())
    }

    fn cuFuncGetAttribute(
        call,
        value: Target<c_int>,
        attribute: CUfunction_attribute,
        function: CUfunction,
    ) {
        call.context(call.thread)?;
        put(value, call.function_attribute(Handle::from_ptr(function), attribute)?)
    }

    fn cuFuncSetAttribute(
        call,
        function: CUfunction,
        attribute: CUfunction_attribute,
        value: c_int,
    ) {
        call.context(call.thread)?;
        call.function_set_attribute(Handle::from_ptr(function), attribute, value)
    }

    fn cuFuncGetModule(call, target: Target<CUmodule>, function: CUfunction) {
        put(target, call.function(Handle::from_ptr(function))?.module.to_ptr())
    }

    // The name is alive as long as the module.
    fn cuFuncGetName(call, name: Target<*const c_char>, function: CUfunction) {
        put(name, call.function(Handle::from_ptr(function))?.name.as_ptr())
    }

    fn cuFuncGetParamInfo(
        call,
        function: CUfunction,
        index: usize,
        offset_bytes: Target<usize>,
        size_bytes: Target<usize>,
    ) {
        let entry = call.function(Handle::from_ptr(function))?.body.entry();
        let parameter = *entry.parameters().get(index).ok_or(INVALID_VALUE)?;
        put(offset_bytes, parameter.offset_bytes)?;
        put_if_wanted(size_bytes, parameter.size_bytes)
    }

    fn cuLaunchKernel(
        call,
        function: CUfunction,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared_bytes: c_uint,
        stream: CUstream,
        parameters: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) {
        let shape = Shape { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared_bytes };
        // SAFETY: the caller gives the parameters of this function in one of the two forms.
        unsafe { launch(call, function, (shape, false), stream, (parameters, extra)) }
    }

    fn cuLaunchCooperativeKernel(
        call,
        function: CUfunction,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared_bytes: c_uint,
        stream: CUstream,
        parameters: *mut *mut c_void,
    ) {
        let shape = Shape { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared_bytes };
        // SAFETY: the caller gives a pointer for each parameter of this function.
        unsafe { launch(call, function, (shape, true), stream, (parameters, null_mut())) }
    }

    fn cuLaunchKernelEx(
        call,
        config: Source<CUlaunchConfig>,
        function: CUfunction,
        parameters: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) {
        let config = take(config)?;
        let mut is_cooperative = false;
        for index in 0..config.numAttrs as usize {
            let attribute = config.attrs.wrapping_add(index);
            // SAFETY: there are `numAttrs` attributes, and each begins with its kind.
            let id = unsafe { take_at(attribute.cast::<CUlaunchAttributeID>())? };
            let is_one_block = id == CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION && {
                // SAFETY: an attribute of this kind is whole, and has three numbers.
                let cluster = unsafe { take_at(attribute)?.value.clusterDim };
                cluster == ClusterDimension { x: 1, y: 1, z: 1 }
            };
            if id == CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE {
                // SAFETY: an attribute of this kind is whole, and has a number.
                is_cooperative = unsafe { take_at(attribute)?.value.cooperative } != 0;
            } else if !is_one_block && !WITHOUT_EFFECT.contains(&id) {
                return Err(refused_attribute(call, id));
            }
        }
        let shape = Shape {
            grid: [config.gridDimX, config.gridDimY, config.gridDimZ],
            block: [config.blockDimX, config.blockDimY, config.blockDimZ],
            shared_bytes: config.sharedMemBytes,
        };
        // SAFETY: the caller gives the parameters of this function in one of the two forms.
        unsafe { launch(call, function, (shape, is_cooperative), config.hStream, (parameters, extra)) }
    }

    fn cuModuleGetFunctionCount(call, count: Target<c_uint>, module: CUmodule) {
        let module = call.modules.get(Handle::from_ptr(module)).ok_or(INVALID_HANDLE)?;
        put(count, module.text.entries().len() as c_uint)
    }

    fn cuModuleGetLoadingMode(_call, mode: Target<CUmoduleLoadingMode>) {
        put(mode, CUmoduleLoadingMode::CU_MODULE_EAGER_LOADING)
    }

    fn cuFuncLoad(call, function: CUfunction) {
        call.function(Handle::from_ptr(function)).map(drop)
    }

    fn cuFuncIsLoaded(call, state: Target<CUfunctionLoadingState>, function: CUfunction) {
        call.function(Handle::from_ptr(function))?;
        put(state, CUfunctionLoadingState::CU_FUNCTION_LOADING_STATE_LOADED)
    }
}

/// Queues a kernel, whose blocks must all be resident if it is cooperative.
///
/// # Safety
///
/// The conditions of `cuLaunchKernel` hold.
unsafe fn launch(
    call: &mut Call<'_>,
    function: CUfunction,
    (shape, is_cooperative): (Shape, bool),
    stream: CUstream,
    (parameters, extra): (*mut *mut c_void, *mut *mut c_void),
) -> Answer<()> {
    let (thread, function) = (call.thread, Handle::from_ptr(function));
    let stream = call.stream(thread, Handle::from_ptr(stream))?;
    let of_stream = |machine: &Machine| Ok(machine.streams.get(stream).ok_or(INVALID_HANDLE)?.context);
    let function = call.launchable(function, of_stream)?;
    if is_cooperative {
        call.check_cooperative(function, &shape)?;
    }
    // SAFETY: the caller guarantees the conditions of `cuLaunchKernel`.
    let packed = unsafe { packed(call, function, parameters, extra)? };
    call.make_room(stream)?;
    call.launch(stream, function, shape, packed)
}

/// Reports a launch attribute that the simulator does not have. Returns the code.
fn refused_attribute(call: &mut Call<'_>, id: CUlaunchAttributeID) -> CUresult {
    let clusters = [
        (CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, "CLUSTER_DIMENSION"),
        (CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION, "PREFERRED_CLUSTER_DIMENSION"),
        (
            CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE,
            "CLUSTER_SCHEDULING_POLICY_PREFERENCE",
        ),
    ];
    let text = match clusters.iter().find(|(cluster, _)| *cluster == id) {
        Some((_, name)) => format!(
            "the simulator runs no clusters of blocks (`CU_LAUNCH_ATTRIBUTE_{name}`); launch a kernel that needs none, with clusters of one \
             block or without the attribute, or test this one on a GPU"
        ),
        None => format!("the simulator does not have the launch attribute {}; launch without it", id.0),
    };
    call.note_image(&ImageError::new(NOT_SUPPORTED, text))
}

/// The launch attributes that change nothing here.
const WITHOUT_EFFECT: [CUlaunchAttributeID; 2] =
    [CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_IGNORE, CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PRIORITY];

/// Copies the parameters of a kernel, given in either of the two forms.
///
/// # Safety
///
/// The conditions of `cuLaunchKernel` hold.
pub(crate) unsafe fn packed(
    call: &mut Call<'_>,
    function: Handle,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Answer<Box<[u8]>> {
    let entry = call.function(function)?.body.entry();
    // SAFETY: the caller guarantees the conditions of `cuLaunchKernel`: one of the two lists, for this function.
    unsafe { if extra.is_null() { pack(entry, parameters) } else { unpack_extra(entry, extra) } }
}

/// Copies parameters that are given one pointer each.
///
/// # Safety
///
/// The pointer is null or points to one pointer for each parameter of the entry, each to that parameter's bytes.
unsafe fn pack(entry: &Entry, parameters: *mut *mut c_void) -> Answer<Box<[u8]>> {
    let mut packed = vec![0; entry.parameter_bytes()].into_boxed_slice();
    for (index, parameter) in entry.parameters().iter().enumerate() {
        if parameters.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller guarantees one pointer for each parameter.
        let source = unsafe { take_at(parameters.add(index))? };
        if source.is_null() {
            return Err(INVALID_VALUE);
        }
        let target = &mut packed[parameter.offset_bytes..][..parameter.size_bytes];
        // SAFETY: the caller guarantees that the pointer points to the parameter's bytes; the target was allocated above.
        unsafe { core::ptr::copy_nonoverlapping(source.cast(), target.as_mut_ptr(), target.len()) };
    }
    Ok(packed)
}

/// Copies parameters that are given packed in one buffer.
///
/// # Safety
///
/// The pointer points to a list of keys and values with the end that the driver requires.
unsafe fn unpack_extra(entry: &Entry, extra: *mut *mut c_void) -> Answer<Box<[u8]>> {
    let (mut buffer, mut size_bytes) = (core::ptr::null::<u8>(), 0);
    for index in (0..).step_by(2).take(EXTRA_PAIRS_MAX) {
        // SAFETY: the list continues until its end was read.
        let (key, value) = unsafe { (take_at(extra.add(index))?.addr(), extra.add(index + 1)) };
        match key {
            EXTRA_END => break,
            // SAFETY: a key other than the end has a value.
            EXTRA_POINTER => buffer = unsafe { take_at(value)? }.cast(),
            // SAFETY: a key other than the end has a value; the value of this key points to a size.
            EXTRA_SIZE => size_bytes = unsafe { take_at(take_at(value)?.cast::<usize>())? },
            _ => return Err(INVALID_VALUE),
        }
    }
    if size_bytes < entry.parameter_bytes() || buffer.is_null() && entry.parameter_bytes() > 0 {
        return Err(INVALID_VALUE);
    }
    if entry.parameter_bytes() == 0 {
        return Ok(Box::default());
    }
    // SAFETY: the caller guarantees that many bytes, of which these are the first.
    Ok(unsafe { core::slice::from_raw_parts(buffer, entry.parameter_bytes()) }.into())
}

const EXTRA_END: usize = 0;
const EXTRA_POINTER: usize = 1;
const EXTRA_SIZE: usize = 2;
const EXTRA_PAIRS_MAX: usize = 3;
