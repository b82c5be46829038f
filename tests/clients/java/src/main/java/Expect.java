import java.util.Arrays;
import java.util.Objects;

/** Ends the program with a message at the first answer that is not memcached's. */
final class Expect {
    static final int LARGE_BYTES = 1_000_000;
    static final int TOO_LARGE_BYTES = 1_100_000;
    static final long EXPIRY_WAIT_MS = 20_000;

    private Expect() {}

    static void same(String what, Object found, Object expected) {
        if (!Objects.deepEquals(found, expected)) {
            fail(what + ": " + found + " instead of " + expected);
        }
    }

    static void fail(String what) {
        String told = what.length() > 500 ? what.substring(0, 500) : what;
        System.err.println(told);
        // The clients' threads would keep the program running.
        System.exit(1);
    }

    static String large(int bytes) {
        char[] letters = new char[bytes];
        Arrays.fill(letters, 'x');
        return new String(letters);
    }

    /** Something that is asked again and again. */
    interface Question {
        Object ask() throws Exception;
    }

    static void expires(Question get) throws Exception {
        long deadlineMs = System.currentTimeMillis() + EXPIRY_WAIT_MS;
        while (get.ask() != null) {
            if (System.currentTimeMillis() > deadlineMs) {
                fail("an item of one second is still there");
            }
        }
    }
}
