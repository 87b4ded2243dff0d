//! The functions of librdkafka that a producer needs, from a library that is loaded at run time.
//!
//! The declarations are those of `rdkafka.h`, version 1.5 and newer. Wrappers check arguments and own handles, so the rest of the crate
//! needs no `unsafe` code.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::ptr::{self, NonNull};
use std::sync::{Arc, OnceLock};

use libloading::Library;

/// Name of the library, as Debian and Fedora install it.
const LIBRARY: &str = "librdkafka.so.1";
/// Size of the buffer for the text of an error.
const ERROR_BYTES: usize = 512;

pub(super) const MSG_SIZE_TOO_LARGE: i32 = 10;
pub(super) const QUEUE_FULL: i32 = -184;
const PRODUCER: c_int = 0;
const CONF_OK: c_int = 0;
const EVENT_DR: c_int = 1;
const EVENT_ERROR: c_int = 8;
const PURGE_ALL: c_int = 1 | 2;
const MSG_F_COPY: c_int = 2;
const PARTITION_ANY: i32 = -1;

#[repr(C)]
#[derive(Clone, Copy)]
struct Mem {
    ptr: *const c_void,
    size: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Header {
    name: *const c_char,
    value: *const c_void,
    size: isize,
}

/// `rd_kafka_vu_t::u`.
#[repr(C)]
#[derive(Clone, Copy)]
union Value {
    text: *const c_char,
    int: c_int,
    i32: i32,
    mem: Mem,
    header: Header,
    ptr: *mut c_void,
    _padding: [u8; 64],
}

/// `rd_kafka_vu_t`: one argument of `rd_kafka_produceva`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Argument {
    kind: c_int,
    value: Value,
}

/// The first fields of `rd_kafka_message_t`.
#[repr(C)]
pub(super) struct RawMessage {
    pub(super) error: c_int,
    topic: *mut c_void,
    partition: i32,
    pub(super) payload: *mut c_void,
    pub(super) n_bytes: usize,
    pub(super) key: *mut c_void,
    pub(super) n_key_bytes: usize,
    offset: i64,
    opaque: *mut c_void,
}

/// Declares the table of functions, and the constructor that looks them up in the library.
macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        #[derive(Clone, Copy)]
        struct Functions {
            $($name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Functions {
            fn of(library: &Library) -> Result<Self, libloading::Error> {
                // SAFETY: the types are those of the header file, and the functions are called only while the library is loaded, which is
                // until the end of the process.
                unsafe {
                    Ok(Self { $($name: *library.get(concat!("rd_kafka_", stringify!($name)).as_bytes())?,)* })
                }
            }
        }
    };
}

functions! {
    conf_new: fn() -> *mut c_void;
    conf_set: fn(*mut c_void, *const c_char, *const c_char, *mut c_char, usize) -> c_int;
    conf_set_events: fn(*mut c_void, c_int);
    conf_destroy: fn(*mut c_void);
    new: fn(c_int, *mut c_void, *mut c_char, usize) -> *mut c_void;
    destroy: fn(*mut c_void);
    produceva: fn(*mut c_void, *const Argument, usize) -> *mut c_void;
    error_code: fn(*const c_void) -> c_int;
    error_string: fn(*const c_void) -> *const c_char;
    error_destroy: fn(*mut c_void);
    err2str: fn(c_int) -> *const c_char;
    queue_get_main: fn(*mut c_void) -> *mut c_void;
    queue_poll: fn(*mut c_void, c_int) -> *mut c_void;
    queue_destroy: fn(*mut c_void);
    event_type: fn(*const c_void) -> c_int;
    event_message_next: fn(*mut c_void) -> *const RawMessage;
    event_error_string: fn(*mut c_void) -> *const c_char;
    event_destroy: fn(*mut c_void);
    metadata: fn(*mut c_void, c_int, *mut c_void, *mut *const c_void, c_int) -> c_int;
    metadata_destroy: fn(*const c_void);
    purge: fn(*mut c_void, c_int) -> c_int;
}

/// The loaded library.
#[derive(Clone)]
pub(super) struct Api {
    functions: Functions,
    #[cfg_attr(not(test), expect(dead_code, reason = "keeps the library loaded"))]
    pub(super) library: Arc<Library>,
}

impl Api {
    /// Loads the library, or returns the library that is loaded already.
    ///
    /// # Errors
    /// Returns a description with a remedy if the library is not installed or too old.
    pub(super) fn load() -> Result<Self, String> {
        static LOADED: OnceLock<Result<Api, String>> = OnceLock::new();
        LOADED.get_or_init(Self::open).clone()
    }

    fn open() -> Result<Self, String> {
        // SAFETY: librdkafka has no initializers that depend on the state of the process.
        let library = unsafe { Library::new(LIBRARY) };
        let library = library.map_err(|error| format!("cannot load {LIBRARY} ({error}); install the package librdkafka1"))?;
        let functions =
            Functions::of(&library).map_err(|error| format!("{LIBRARY} is too old ({error}); expected version 1.5 or newer"))?;
        Ok(Self { functions, library: Arc::new(library) })
    }

    /// The text of an error code.
    pub(super) fn error_text(&self, code: i32) -> String {
        // SAFETY: the function accepts any number and returns a static text.
        text(unsafe { (self.functions.err2str)(code) })
    }
}

fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: not null, and all texts of the library end in a zero byte and outlive this call.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// An event of a producer.
pub(super) enum Event {
    /// Results of messages: number and error code, 0 for a delivered message.
    Delivered(Vec<(u64, i32)>),
    /// An error of the connection. The library tries again.
    Error(String),
    Other,
}

/// A producer with its queue of events.
pub(super) struct Producer {
    api: Api,
    handle: NonNull<c_void>,
    queue: *mut c_void,
}

// SAFETY: the library's handles may be used from any thread.
unsafe impl Send for Producer {}

impl Producer {
    /// Creates a producer. Connects in the background.
    ///
    /// # Errors
    /// Returns the library's description if the library does not accept a setting.
    pub(super) fn new(api: &Api, settings: &[(String, String)]) -> Result<Self, String> {
        let functions = api.functions;
        let mut error = [0_u8; ERROR_BYTES];
        let reason = |error: &[u8]| String::from_utf8_lossy(error.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned();
        // SAFETY: a new configuration has no preconditions.
        let conf = unsafe { (functions.conf_new)() };
        for (name, value) in settings {
            let set = match (CString::new(&**name), CString::new(&**value)) {
                // SAFETY: the configuration is valid, the texts end in zero bytes, and the length is that of the buffer.
                (Ok(name), Ok(value)) => unsafe {
                    (functions.conf_set)(conf, name.as_ptr(), value.as_ptr(), error.as_mut_ptr().cast(), error.len())
                },
                _ => -1,
            };
            if set != CONF_OK {
                // SAFETY: the configuration is valid and is not used after this call.
                unsafe { (functions.conf_destroy)(conf) };
                return Err(format!("setting {name}: {}", reason(&error)));
            }
        }
        // SAFETY: the configuration is valid. `rd_kafka_new` owns it if it succeeds; otherwise this function destroys it.
        let handle = unsafe {
            (functions.conf_set_events)(conf, EVENT_DR | EVENT_ERROR);
            let handle = NonNull::new((functions.new)(PRODUCER, conf, error.as_mut_ptr().cast(), error.len()));
            if handle.is_none() {
                (functions.conf_destroy)(conf);
            }
            handle
        };
        let handle = handle.ok_or_else(|| reason(&error))?;
        // SAFETY: the handle is valid.
        let queue = unsafe { (functions.queue_get_main)(handle.as_ptr()) };
        Ok(Self { api: api.clone(), handle, queue })
    }

    /// Waits at most `timeout_ms` until a broker answers.
    ///
    /// # Errors
    /// Returns the error of the library.
    pub(super) fn probe(&self, timeout_ms: i32) -> Result<(), i32> {
        let mut metadata = ptr::null();
        let functions = &self.api.functions;
        // SAFETY: the handle is valid, the topic may be null, and `metadata` is written only on success, and then destroyed once.
        unsafe {
            match (functions.metadata)(self.handle.as_ptr(), 0, ptr::null_mut(), &raw mut metadata, timeout_ms) {
                0 => {
                    (functions.metadata_destroy)(metadata);
                    Ok(())
                }
                code => Err(code),
            }
        }
    }

    /// Queues a message. `number` identifies it in [`Event::Delivered`].
    ///
    /// # Errors
    /// Returns the library's error code and description.
    pub(super) fn produce(
        &self,
        topic: &str,
        key: &str,
        (header, value): (&str, &str),
        payload: &[u8],
        number: u64,
    ) -> Result<(), (i32, String)> {
        let invalid = |_| (-1, "a zero byte in the name of a topic".to_owned());
        let (topic, header) = (CString::new(topic).map_err(invalid)?, CString::new(header).map_err(invalid)?);
        let mem = |bytes: &[u8]| Value { mem: Mem { ptr: bytes.as_ptr().cast(), size: bytes.len() } };
        let header = Header { name: header.as_ptr(), value: value.as_ptr().cast(), size: value.len() as isize };
        let arguments = [
            Argument { kind: 1, value: Value { text: topic.as_ptr() } },
            Argument { kind: 3, value: Value { i32: PARTITION_ANY } },
            Argument { kind: 4, value: mem(payload) },
            Argument { kind: 5, value: mem(key.as_bytes()) },
            Argument { kind: 6, value: Value { ptr: ptr::without_provenance_mut(number as usize) } },
            Argument { kind: 7, value: Value { int: MSG_F_COPY } },
            Argument { kind: 9, value: Value { header } },
        ];
        let functions = &self.api.functions;
        // SAFETY: the handle is valid, the kinds name the fields of the unions that are set, and all texts and bytes live until the call
        // returns, because the library copies them.
        unsafe {
            let error = (functions.produceva)(self.handle.as_ptr(), arguments.as_ptr(), arguments.len());
            if error.is_null() {
                return Ok(());
            }
            let outcome = ((functions.error_code)(error), text((functions.error_string)(error)));
            (functions.error_destroy)(error);
            Err(outcome)
        }
    }

    /// Waits at most `timeout_ms` for the next event.
    pub(super) fn poll(&self, timeout_ms: i32) -> Option<Event> {
        let functions = &self.api.functions;
        // SAFETY: the queue is valid. Messages are read before their event is destroyed, and the event is destroyed once.
        unsafe {
            let event = (functions.queue_poll)(self.queue, timeout_ms);
            if event.is_null() {
                return None;
            }
            let read = match (functions.event_type)(event) {
                EVENT_DR => {
                    let mut delivered = Vec::new();
                    while let Some(message) = (functions.event_message_next)(event).as_ref() {
                        delivered.push((message.opaque.addr() as u64, message.error));
                    }
                    Event::Delivered(delivered)
                }
                EVENT_ERROR => Event::Error(text((functions.event_error_string)(event))),
                _ => Event::Other,
            };
            (functions.event_destroy)(event);
            Some(read)
        }
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        let functions = &self.api.functions;
        // SAFETY: queue and handle are valid, and not used after this call. Waiting messages are dropped first, because `destroy` would
        // wait for their delivery.
        unsafe {
            (functions.purge)(self.handle.as_ptr(), PURGE_ALL);
            (functions.queue_destroy)(self.queue);
            (functions.destroy)(self.handle.as_ptr());
        }
    }
}

/// Converts an error of the library.
pub(super) fn io_error(text: String) -> io::Error {
    io::Error::other(text)
}
