//! Opcodes: the second byte of a request. A name with `Q` at its end is the quiet form, one with `K` the form whose
//! response repeats the key.

macro_rules! opcodes {
    ($($name:ident = $byte:literal, $doc:literal;)*) => {
        $(#[doc = $doc] pub const $name: u8 = $byte;)*
    };
}

opcodes! {
    GET = 0x00, "`get`";
    SET = 0x01, "`set`";
    ADD = 0x02, "`add`";
    REPLACE = 0x03, "`replace`";
    DELETE = 0x04, "`delete`";
    INCREMENT = 0x05, "`incr`";
    DECREMENT = 0x06, "`decr`";
    QUIT = 0x07, "`quit`";
    FLUSH = 0x08, "`flush`";
    GETQ = 0x09, "`get`, quiet";
    NOOP = 0x0a, "`noop`";
    VERSION = 0x0b, "`version`";
    GETK = 0x0c, "`get` with the key";
    GETKQ = 0x0d, "`get` with the key, quiet";
    APPEND = 0x0e, "`append`";
    PREPEND = 0x0f, "`prepend`";
    STAT = 0x10, "`stat`";
    SETQ = 0x11, "`set`, quiet";
    ADDQ = 0x12, "`add`, quiet";
    REPLACEQ = 0x13, "`replace`, quiet";
    DELETEQ = 0x14, "`delete`, quiet";
    INCREMENTQ = 0x15, "`incr`, quiet";
    DECREMENTQ = 0x16, "`decr`, quiet";
    QUITQ = 0x17, "`quit`, quiet";
    FLUSHQ = 0x18, "`flush`, quiet";
    APPENDQ = 0x19, "`append`, quiet";
    PREPENDQ = 0x1a, "`prepend`, quiet";
    TOUCH = 0x1c, "`touch`";
    GAT = 0x1d, "get and touch";
    GATQ = 0x1e, "get and touch, quiet";
    SASL_MECHANISMS = 0x20, "SASL: the mechanisms";
    SASL_AUTHENTICATE = 0x21, "SASL: the first message";
    SASL_STEP = 0x22, "SASL: a further message";
    GATK = 0x23, "get and touch, with the key";
    GATKQ = 0x24, "get and touch, with the key, quiet";
}

/// Whether a request with this opcode omits the expected response: a get's miss, or the success of another operation.
pub const fn is_quiet(opcode: u8) -> bool {
    matches!(opcode, GETQ | GETKQ | GATQ | GATKQ | SETQ..=PREPENDQ)
}

pub(super) const fn has_key(opcode: u8) -> bool {
    matches!(opcode, GETK | GETKQ | GATK | GATKQ)
}
