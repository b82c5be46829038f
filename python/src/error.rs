//! Errors as Python sees them: the exceptions of `lookaside.errors`.

use lookaside_client::{ClientError, CommandError, DecodeError, EncodeError, TypedError};
use lookaside_routing::Address;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

/// An exception of `lookaside.errors`.
pub(crate) fn exception(py: Python<'_>, name: &str, message: String) -> PyErr {
    let made = py.import("lookaside.errors").and_then(|errors| errors.getattr(name)?.call1((message,)));
    made.map_or_else(|error| error, PyErr::from_value)
}

/// The same, with the exception that it was caused by; `None` if there is none.
fn exception_from(py: Python<'_>, name: &str, message: String, cause: Option<PyErr>) -> PyErr {
    let error = exception(py, name, message);
    error.set_cause(py, cause);
    error
}

/// The error of a codec, which knows a value and not its key, with the key in front; any other error as it is.
pub(crate) fn name_key(py: Python<'_>, error: PyErr, key: impl FnOnce() -> String) -> PyErr {
    let is_a = |name: &&str| {
        let class = py.import("lookaside.errors").and_then(|errors| errors.getattr(*name));
        class.is_ok_and(|class| error.is_instance(py, &class))
    };
    match ["DecodeError", "EncodeError"].into_iter().find(is_a) {
        Some(name) => exception_from(py, name, format!("{}: {}", key(), error.value(py)), error.cause(py)),
        None => error,
    }
}

/// The exception for a value that the codec refuses, caused by an exception of Python. One that is no `Exception`, such
/// as `KeyboardInterrupt` and `SystemExit`, says nothing of the value: it was raised while the codec ran, and stays as
/// it is. `MemoryError` is an `Exception`: a pickle that was cut can ask for more memory than there is.
pub(crate) fn codec_error(py: Python<'_>, name: &str, message: String, cause: PyErr) -> PyErr {
    match cause.is_instance_of::<PyException>(py) {
        true => exception_from(py, name, message, Some(cause)),
        false => cause,
    }
}

/// The exception that stands for an error.
pub(crate) fn error_name(error: &ClientError) -> &'static str {
    match error {
        ClientError::BadKey(_) => "InvalidKeyError",
        ClientError::Failed(_) | ClientError::DatagramLost { .. } => "CacheUnavailableError",
        ClientError::Refused { .. } | ClientError::UnknownCommand { .. } | ClientError::Unexpected { .. } => {
            "RefusedError"
        }
        ClientError::NotStored => "NotStoredError",
        ClientError::DeadlineExceeded => "DeadlineExceededError",
    }
}

pub(crate) fn client_error(py: Python<'_>, error: &ClientError) -> PyErr {
    exception(py, error_name(error), error.to_string())
}

/// The error of a command that was sent to a router.
pub(crate) fn router_error(py: Python<'_>, router: Option<&Address>, error: &CommandError) -> PyErr {
    let name = match error {
        CommandError::Refused(_) | CommandError::Unexpected(_) => "RefusedError",
        CommandError::TimedOut(_) => "DeadlineExceededError",
        _ => "CacheUnavailableError",
    };
    let message = match router {
        Some(router) => format!("router {}: {error}", router.0),
        None => error.to_string(),
    };
    exception(py, name, message)
}

pub(crate) fn decode_error(py: Python<'_>, error: &DecodeError) -> PyErr {
    exception(py, "DecodeError", error.to_string())
}

pub(crate) fn encode_error(py: Python<'_>, error: &EncodeError) -> PyErr {
    exception(py, "EncodeError", error.to_string())
}

pub(crate) fn typed_error(py: Python<'_>, error: &TypedError) -> PyErr {
    match error {
        TypedError::Client(error) => client_error(py, error),
        TypedError::Encode(error) => encode_error(py, error),
        TypedError::Decode(error) => decode_error(py, error),
    }
}
