//! Python objects as values, and back. The flags are those of `lookaside_client`'s values, which pymemcache and pylibmc
//! know, too; docs/clients.md has the table.
//!
//! | object | format | with `pickle=True` |
//! |---|---|---|
//! | `None` | the mark of an absent row | the same |
//! | `bytes`, `bytearray`, `memoryview` | bytes | the same; a `bytearray` is pickled |
//! | `str` | text | the same |
//! | `int` | an integer | the same |
//! | all others (`bool`, `float`, `list`, `dict`, ...) | JSON | pickled |

use crate::error::{codec_error, exception, name_key};
use crate::waiting::Inside;
use bytes::Bytes;
use lookaside_client::{Content, Format};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{IntoPyDict, PyBool, PyByteArray, PyBytes, PyInt, PyMemoryView, PyString};

/// Integers of up to this number of digits are read without Python's parser.
const SHORT_INTEGER_DIGITS: usize = 18;

/// Which objects can be stored and read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ValueCodec {
    /// Whether objects are pickled and unpickled. A pickle that a stranger has written runs code when it is read.
    pub(crate) is_pickling: bool,
}

impl ValueCodec {
    /// The value to store.
    pub(crate) fn encode(self, value: &Bound<'_, PyAny>) -> PyResult<Content> {
        let py = value.py();
        let _inside = Inside::enter(py);
        self.encode_unchecked(value).map_err(|error| {
            let type_name = value.get_type().name().map_or_else(|_| "object".to_owned(), |name| name.to_string());
            let hint =
                if self.is_pickling { "" } else { "; Client(pickle=True) stores any object that can be pickled" };
            codec_error(py, "EncodeError", format!("cannot store a value of type {type_name}{hint}"), error)
        })
    }

    fn encode_unchecked(self, value: &Bound<'_, PyAny>) -> PyResult<Content> {
        let py = value.py();
        let content = |format, bytes: &[u8]| Ok(Content { format, bytes: Bytes::copy_from_slice(bytes) });
        if value.is_none() {
            return Ok(Content::absent());
        }
        if let Ok(bytes) = value.cast_exact::<PyBytes>() {
            return content(Format::Bytes, bytes.as_bytes());
        }
        if let Ok(text) = value.cast_exact::<PyString>() {
            return content(Format::Text, text.to_str()?.as_bytes());
        }
        if let Ok(integer) = value.cast_exact::<PyInt>() {
            return content(Format::Integer, integer.str()?.to_str()?.as_bytes());
        }
        if self.is_pickling {
            let pickled = pickle_dumps(py)?.call1((value, PICKLE_PROTOCOL))?;
            return content(Format::Pickle, pickled.cast::<PyBytes>()?.as_bytes());
        }
        if let Ok(bytes) = value.cast::<PyBytes>() {
            return content(Format::Bytes, bytes.as_bytes());
        }
        if let Ok(bytes) = value.cast::<PyByteArray>() {
            return Ok(Content { format: Format::Bytes, bytes: bytes.to_vec().into() });
        }
        if value.cast::<PyMemoryView>().is_ok() {
            return content(Format::Bytes, value.call_method0("tobytes")?.cast::<PyBytes>()?.as_bytes());
        }
        if let Ok(text) = value.cast::<PyString>() {
            return content(Format::Text, text.to_str()?.as_bytes());
        }
        if !value.is_instance_of::<PyBool>() && value.is_instance_of::<PyInt>() {
            let digits = py.get_type::<PyInt>().call_method1("__repr__", (value,))?;
            return content(Format::Integer, digits.cast::<PyString>()?.to_str()?.as_bytes());
        }
        let json = json_encode(py)?.call1((value,))?;
        content(Format::Json, json.cast::<PyString>()?.to_str()?.as_bytes())
    }

    /// The values that a loader returned, of which there must be one for each key.
    /// `name` is the key of one of these indexes, for the error of its value.
    pub(crate) fn encode_loaded(
        self,
        loaded: &Bound<'_, PyAny>,
        keys: usize,
        name: impl Fn(usize) -> String,
    ) -> PyResult<Vec<Content>> {
        let mut values = Vec::with_capacity(keys);
        for (index, value) in loaded.try_iter()?.enumerate() {
            // One that is one too many has no key.
            let encoded = self.encode(&value?);
            values.push(match index < keys {
                true => encoded.map_err(|error| name_key(loaded.py(), error, || name(index)))?,
                false => encoded?,
            });
        }
        check_loaded(values.len(), keys)?;
        Ok(values)
    }

    /// The object that was stored. A value that cannot be decoded is a `DecodeError`; any other error was raised by the
    /// code that ran meanwhile.
    pub(crate) fn decode<'py>(self, py: Python<'py>, content: &Content) -> PyResult<Bound<'py, PyAny>> {
        let Content { format, bytes } = content;
        let malformed =
            |error| codec_error(py, "DecodeError", format!("the value is not valid: expected {format}"), error);
        match format {
            Format::Bytes => Ok(PyBytes::new(py, bytes).into_any()),
            Format::Text => Ok(PyString::from_bytes(py, bytes).map_err(malformed)?.into_any()),
            Format::Integer => decode_integer(py, bytes).map_err(malformed),
            Format::Absent => Ok(py.None().into_bound(py)),
            Format::Json => decode_json(py, bytes).map_err(malformed),
            Format::Pickle if self.is_pickling => {
                pickle_loads(py)?.call1((PyBytes::new(py, bytes),)).map_err(malformed)
            }
            Format::Pickle => {
                let message = "the value is a pickled object, and this client does not read these; if only trusted \
                               programs can write to the cache, use Client(pickle=True)";
                Err(exception(py, "DecodeError", message.to_owned()))
            }
            Format::MessagePack => decode_message_pack(py, bytes).map_err(malformed),
        }
    }
}

/// Fails unless a loader has returned a value for each key.
pub(crate) fn check_loaded(values: usize, keys: usize) -> PyResult<()> {
    match values == keys {
        true => Ok(()),
        false => Err(PyValueError::new_err(format!("the loader returned {values} values for {keys} keys"))),
    }
}

/// Python 3.8 and later read it.
const PICKLE_PROTOCOL: u8 = 5;

fn decode_integer<'py>(py: Python<'py>, digits: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    if digits.len() <= SHORT_INTEGER_DIGITS
        && let Some(integer) = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse::<i64>().ok())
    {
        return Ok(integer.into_pyobject(py)?.into_any());
    }
    // Large, or with the spaces that memcached's `decr` leaves behind a number.
    py.get_type::<PyInt>().call1((PyBytes::new(py, digits),))
}

fn decode_json<'py>(py: Python<'py>, json: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    static LOADS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    LOADS.import(py, "json", "loads")?.call1((PyString::from_bytes(py, json)?,))
}

fn decode_message_pack<'py>(py: Python<'py>, packed: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    py.import("msgpack")?.call_method1("unpackb", (PyBytes::new(py, packed),))
}

fn pickle_dumps(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static DUMPS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    DUMPS.import(py, "pickle", "dumps")
}

fn pickle_loads(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static LOADS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    LOADS.import(py, "pickle", "loads")
}

/// Encodes compactly, and refuses what JSON has no form for (NaN).
fn json_encode(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static ENCODE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let encode = ENCODE.get_or_try_init(py, || {
        let options = [("ensure_ascii", false), ("allow_nan", false)].into_py_dict(py)?;
        options.set_item("separators", (",", ":"))?;
        let encoder = py.import("json")?.getattr("JSONEncoder")?.call((), Some(&options))?;
        Ok::<_, PyErr>(encoder.getattr("encode")?.unbind())
    })?;
    Ok(encode.bind(py))
}
