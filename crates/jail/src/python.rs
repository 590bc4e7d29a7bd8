//! The object as a Python extension module with one function, `fork`. Written against the few C
//! symbols that every CPython since 3.10 has: `ctypes` would cost each fork a megabyte.
#![expect(unsafe_code, reason = "CPython's interface is made of C functions and C structures")]

use core::{
    cell::UnsafeCell,
    ffi::{CStr, c_char, c_int, c_long},
    ptr::{null, null_mut},
};

/// A Python object, or a module definition: known to the interpreter only.
#[repr(C)]
pub struct Object {
    _private: [u8; 0],
}

unsafe extern "C" {
    fn PyModule_Create2(definition: *mut Definition, version: c_int) -> *mut Object;
    fn PyLong_AsLong(object: *mut Object) -> c_long;
    fn PyBool_FromLong(value: c_long) -> *mut Object;
    fn PyOS_BeforeFork();
    fn PyOS_AfterFork_Parent();
    fn PyOS_AfterFork_Child();
}

/// `PYTHON_ABI_VERSION`: the stable interface.
const STABLE_ABI: c_int = 3;

/// `METH_O`: one argument.
const ONE_ARGUMENT: c_int = 8;

/// `PyMethodDef`.
#[repr(C)]
struct Method {
    name: *const c_char,
    function: Option<unsafe extern "C" fn(*mut Object, *mut Object) -> *mut Object>,
    flags: c_int,
    documentation: *const c_char,
}

/// `PyModuleDef`, as it is laid out with a global interpreter lock.
#[repr(C)]
struct Definition {
    reference_count: isize,
    kind: *mut Object,
    initialize: *const (),
    index: isize,
    copy: *mut Object,
    name: *const c_char,
    documentation: *const c_char,
    size: isize,
    methods: *const Method,
    slots: *const (),
    hooks: [*const (); 3],
}

/// What the interpreter keeps a pointer to, and writes to while it holds its lock.
struct Shared<T>(UnsafeCell<T>);

// SAFETY: this file never touches the value; the interpreter does, under its lock.
unsafe impl<T> Sync for Shared<T> {}

static METHODS: Shared<[Method; 2]> = Shared(UnsafeCell::new([
    Method {
        name: c"fork".as_ptr(),
        function: Some(fork),
        flags: ONE_ARGUMENT,
        documentation: text(c"Serves the forks that are asked for on a channel; returns in each."),
    },
    Method {
        name: null(),
        function: None,
        flags: 0,
        documentation: null(),
    },
]));

static DEFINITION: Shared<Definition> = Shared(UnsafeCell::new(Definition {
    reference_count: 1,
    kind: null_mut(),
    initialize: null(),
    index: 0,
    copy: null_mut(),
    name: text(c"mcp_forge_seal"),
    documentation: null(),
    size: -1,
    methods: METHODS.0.get().cast(),
    slots: null(),
    hooks: [null(); 3],
}));

const fn text(text: &'static CStr) -> *const c_char {
    text.as_ptr()
}

/// The name by which the interpreter finds the module.
#[unsafe(no_mangle)]
pub extern "C" fn PyInit_mcp_forge_seal() -> *mut Object {
    // SAFETY: called by the interpreter, which holds its lock, with a definition that lives for ever.
    unsafe { PyModule_Create2(DEFINITION.0.get(), STABLE_ABI) }
}

/// `fork(channel) -> bool`: returns in each fork only, true if it has time to rehearse.
unsafe extern "C" fn fork(_: *mut Object, channel: *mut Object) -> *mut Object {
    // SAFETY: the interpreter passes a live object. What is no integer reads as -1: no channel.
    let channel = unsafe { PyLong_AsLong(channel) } as c_int;
    loop {
        let Some(request) = crate::receive(channel) else {
            crate::fork_calls::exit(0);
        };
        // SAFETY: called with the lock held, in a process with one thread, as CPython's own fork is.
        unsafe { PyOS_BeforeFork() };
        let is_fork = crate::serve(channel, &request);
        if is_fork {
            // SAFETY: as above, in the child.
            unsafe { PyOS_AfterFork_Child() };
            // SAFETY: the lock is held.
            return unsafe { PyBool_FromLong(c_long::from(request.has_time())) };
        }
        // SAFETY: as above, in the parent.
        unsafe { PyOS_AfterFork_Parent() };
    }
}
