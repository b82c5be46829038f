//! The text protocol: input in one piece, in halves, byte by byte, ten thousand commands at once, and invalid.

use crate::running_server::{Client, RunningServer};

#[test]
fn the_basic_verbs() {
    let server = RunningServer::start(&[]);
    let mut client = server.connect();
    client.exchange("set k 5 0 3\r\nabc\r\n", "STORED\r\n");
    client.exchange("get k\r\n", "VALUE k 5 3\r\nabc\r\nEND\r\n");
    client.exchange(
        "append k 0 0 1\r\nd\r\nprepend k 0 0 1\r\n_\r\nget k\r\n",
        "STORED\r\nSTORED\r\nVALUE k 5 5\r\n_abcd\r\nEND\r\n",
    );
    client.exchange("add k 0 0 1\r\nx\r\nreplace other 0 0 1\r\nx\r\n", "NOT_STORED\r\nNOT_STORED\r\n");
    client.exchange("set n 0 0 1\r\n9\r\nincr n 2\r\ndecr n 20\r\n", "STORED\r\n11\r\n0\r\n");
    client.exchange("incr k 1\r\n", "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n");
    client.exchange("touch k 100\r\ntouch absent 100\r\n", "TOUCHED\r\nNOT_FOUND\r\n");
    client.exchange("gat 0 k absent\r\n", "VALUE k 5 5\r\n_abcd\r\nEND\r\n");
    client.exchange("delete k\r\ndelete k\r\nget k\r\n", "DELETED\r\nNOT_FOUND\r\nEND\r\n");
    client.exchange("set q 0 0 1 noreply\r\nx\r\ndelete q noreply\r\nget q n\r\n", "VALUE n 0 2\r\n0 \r\nEND\r\n");
    client.exchange("verbosity 1\r\nflush_all\r\nget n\r\n", "OK\r\nOK\r\nEND\r\n");
    client.exchange("version\r\n", format!("VERSION {}\r\n", lookaside_server::VERSION));
    client.send("quit\r\n");
    assert_eq!(client.read_to_end(), b"");
}

#[test]
fn a_partial_command_waits_and_does_not_affect_other_clients() {
    let server = RunningServer::start(&["-t", "1"]);
    let (mut slow, mut other) = (server.connect(), server.connect());
    slow.send("set k 0 0 10\r\n0123");
    other.exchange("get k\r\n", "END\r\n");
    slow.send("456789\r\nget ");
    slow.expect("STORED\r\n");
    other.exchange("get k\r\n", "VALUE k 0 10\r\n0123456789\r\nEND\r\n");
    slow.exchange("k\r\n", "VALUE k 0 10\r\n0123456789\r\nEND\r\n");
    drop(slow);
    other.wait_for_stat("curr_connections", 1);
}

#[test]
fn byte_by_byte() {
    let server = RunningServer::start(&[]);
    let mut client = server.connect();
    for byte in b"set key 7 0 5\r\nhello\r\nget key absent\r\ndelete key\r\n" {
        client.send([*byte]);
    }
    client.expect("STORED\r\nVALUE key 7 5\r\nhello\r\nEND\r\nDELETED\r\n");
}

/// The connection is closed before the server reads, so that the kernel reports input and end at once.
#[test]
fn bytes_and_the_end_at_once() {
    let server = RunningServer::start(&["-t", "1"]);
    for _ in 0..200 {
        let mut client = server.connect();
        client.send("get k\r\nget ");
        client.stream.shutdown(std::net::Shutdown::Write).expect("it is connected");
        assert_eq!(client.read_to_end(), b"END\r\n");
    }
    server.connect().wait_for_stat("curr_connections", 1);
}

/// Each read takes as much as fits, and the rest is read later.
#[test]
fn as_many_bytes_as_one_read_takes() {
    let server = RunningServer::start(&["-t", "1"]);
    let mut client = server.connect();
    for reads in [1, 2, 3] {
        let count = reads * lookaside_server::READ_BYTES_MAX / 8;
        client.exchange("get abc\n".repeat(count), "END\r\n".repeat(count));
    }
}

#[test]
fn ten_thousand_commands_in_one_write() {
    let server = RunningServer::start(&[]);
    let mut client = server.connect();
    let (mut requests, mut replies) = (String::new(), String::new());
    for n in 0..10_000 {
        let key = n % 700;
        match n % 3 {
            0 => {
                requests += &format!("set k{key} {n} 0 6\r\n{n:06}\r\n");
                replies += "STORED\r\n";
            }
            1 => {
                requests += &format!("get k{} none{n}\r\n", (n - 1) % 700);
                replies += &format!("VALUE k{} {} 6\r\n{:06}\r\nEND\r\n", (n - 1) % 700, n - 1, n - 1);
            }
            _ => {
                requests += &format!("touch none{n} 0\r\n");
                replies += "NOT_FOUND\r\n";
            }
        }
    }
    let mut writer = crate::running_server::Client { stream: client.stream.try_clone().expect("a second handle") };
    let sending = std::thread::spawn(move || writer.send(requests));
    client.expect(replies);
    sending.join().expect("all was sent");
}

#[test]
fn a_get_of_a_thousand_keys() {
    let server = RunningServer::start(&[]);
    let mut client = server.connect();
    let (mut get, mut replies) = ("get".to_string(), String::new());
    for n in 0..1000 {
        client.exchange(format!("set key:{n} 0 0 4\r\n{n:04}\r\n"), "STORED\r\n");
        get += &format!(" key:{n} absent:{n}");
        replies += &format!("VALUE key:{n} 0 4\r\n{n:04}\r\n");
    }
    client.exchange(get + "\r\n", replies + "END\r\n");
}

#[test]
fn invalid_commands_get_an_error_and_the_connection_stays_open() {
    let server = RunningServer::start(&[]);
    let mut client = server.connect();
    client.exchange("nonsense\r\n", "ERROR\r\n");
    client.exchange("\u{1}\u{2}\u{3}\u{fffd} \r\n", "ERROR\r\n");
    client.exchange("get\r\n", "CLIENT_ERROR bad command line format\r\n");
    client.exchange("set k 0 0 abc\r\n", "CLIENT_ERROR bad command line format\r\n");
    client.exchange(format!("get {}\r\n", "k".repeat(251)), "CLIENT_ERROR bad command line format\r\n");
    client.exchange(format!("get ok {}\r\n", "k".repeat(251)), "CLIENT_ERROR bad command line format\r\n");
    client.exchange(format!("set {} 0 0 1\r\nx\r\n", "k".repeat(251)), "CLIENT_ERROR bad command line format\r\n");
    client.exchange(format!("set {} 0 0 1\r\nx\r\n", "k".repeat(250)), "STORED\r\n");
    client.exchange("get nothing\r\n", "END\r\n");
}

#[test]
fn a_line_without_a_line_feed_closes_the_connection() {
    let server = RunningServer::start(&[]);
    let (mut client, mut other) = (server.connect(), server.connect());
    // The server may close the connection before it has read everything, so the write may fail.
    let _ = std::io::Write::write_all(&mut client.stream, &vec![b'x'; 4 << 20]);
    let reply = client.read_to_end();
    assert!(reply.is_empty() || reply == b"CLIENT_ERROR line too long\r\n", "{:?}", reply.escape_ascii().to_string());
    other.wait_for_stat("curr_connections", 1);
}

#[test]
fn a_value_over_the_limit_is_swallowed_and_the_old_one_dropped() {
    let server = RunningServer::start(&["-I", "2k"]);
    let mut client = server.connect();
    client.exchange("set k 0 0 3\r\nold\r\n", "STORED\r\n");
    let large = "get k\r\n".repeat(1000);
    client.exchange(
        format!("set k 0 0 {}\r\n{large}\r\nget k\r\n", large.len()),
        "SERVER_ERROR object too large for cache\r\nEND\r\n",
    );
    // The value would fit alone, but not with its key and header.
    client.exchange("set k 0 0 3\r\nold\r\n", "STORED\r\n");
    let almost = "x".repeat(2048);
    client.exchange(
        format!("set k 0 0 2048\r\n{almost}\r\nget k\r\n"),
        "SERVER_ERROR object too large for cache\r\nEND\r\n",
    );
}

#[test]
fn a_value_of_almost_a_megabyte() {
    let server = RunningServer::start(&[]);
    let mut client = server.connect();
    let value = "v".repeat((1 << 20) - 512);
    client.exchange(format!("set k 0 0 {}\r\n{value}\r\n", value.len()), "STORED\r\n");
    client.exchange("get k\r\n", format!("VALUE k 0 {}\r\n{value}\r\nEND\r\n", value.len()));
}

#[test]
fn one_client_fills_a_miss_and_the_others_wait() {
    let server = RunningServer::start(&[]);
    let mut clients: Vec<_> = (0..20).map(|_| server.connect()).collect();
    clients.iter_mut().for_each(|client| client.send("lease-get k\r\n"));
    let tokens: Vec<u64> = clients
        .iter_mut()
        .map(|client| {
            let mut line = String::new();
            std::io::BufRead::read_line(&mut std::io::BufReader::with_capacity(1, &client.stream), &mut line)
                .expect("a reply");
            client.expect("\r\nEND\r\n");
            line.split(' ')
                .nth(2)
                .and_then(|token| token.parse().ok())
                .unwrap_or_else(|| panic!("no token in {line:?}"))
        })
        .collect();
    let issued: Vec<u64> = tokens.into_iter().filter(|&token| token > 1).collect();
    assert_eq!(issued.len(), 1, "one token, nineteen hot misses");
    clients[0].exchange(format!("lease-set k {} 0 0 1\r\nv\r\n", issued[0] ^ 2), "NOT_STORED\r\n");
    clients[1].exchange(format!("lease-set k {} 0 0 1\r\nv\r\n", issued[0]), "STORED\r\n");
    clients[2].exchange("lease-get k\r\n", "VALUE k 0 1\r\nv\r\nEND\r\n");
    assert_eq!(clients[3].stat("lease_hot_misses"), 19);
}

#[test]
fn a_hold_off_refuses_an_add() {
    let server = RunningServer::start(&[]);
    let mut client = server.connect();
    client
        .exchange("delete k 100\r\nadd k 0 0 1\r\nx\r\nset k 0 0 1\r\nx\r\n", "NOT_FOUND\r\nNOT_STORED\r\nSTORED\r\n");
    assert_eq!(client.stat("hold_off_refusals"), 1);
}

#[test]
fn stats_count_as_memcached_does() {
    let server = RunningServer::start(&["-c", "77"]);
    let mut client = server.connect();
    client.exchange(
        "set a 0 0 1\r\n1\r\nget a b c\r\ngat 0 a\r\ntouch b 0\r\n",
        "STORED\r\nVALUE a 0 1\r\n1\r\nEND\r\nVALUE a 0 1\r\n1\r\nEND\r\nNOT_FOUND\r\n",
    );
    client.exchange(
        "incr a 1\r\ndecr b 1\r\ncas a 0 0 1 1\r\nx\r\ncas b 0 0 1 1\r\nx\r\ndelete b\r\n",
        "2\r\nNOT_FOUND\r\nEXISTS\r\nNOT_FOUND\r\nNOT_FOUND\r\n",
    );
    let expected = [
        ("cmd_get", 4),
        ("get_hits", 2),
        ("get_misses", 2),
        ("cmd_set", 3),
        ("cmd_touch", 2),
        ("touch_hits", 1),
        ("touch_misses", 1),
        ("incr_hits", 1),
        ("decr_misses", 1),
        ("cas_badval", 1),
        ("cas_misses", 1),
        ("delete_misses", 1),
        ("curr_items", 1),
        ("curr_connections", 1),
        ("max_connections", 77),
        ("threads", 2),
        ("limit_maxbytes", 64 << 20),
        ("evictions", 0),
    ];
    for (name, value) in expected {
        assert_eq!(client.stat(name), value, "{name}");
    }
    assert!(client.stat("bytes_read") > 0 && client.stat("bytes_written") > 0 && client.stat("bytes") > 0);
    client.exchange("stats reset\r\n", "RESET\r\n");
    assert_eq!((client.stat("cmd_get"), client.stat("curr_items")), (0, 1));
    client.exchange("stats nonsense\r\n", "ERROR\r\n");
}

#[test]
fn the_meta_verbs_answer_as_memcached_1_6_45_does() {
    let server = RunningServer::start(&[]);
    let mut client = server.connect();
    client.exchange("mg foo v k Oabc t\r\n", "EN kfoo Oabc\r\n");
    client.exchange("ms foo 3 T0 F5 k Ox t s\r\nabc\r\n", "HD kfoo Ox s3\r\n");
    client.exchange("mg foo s v k Oabc t f h\r\n", "VA 3 s3 kfoo Oabc t-1 f5 h0\r\nabc\r\n");
    client.exchange("mg foo h t\r\nmg foo\r\n", "HD h1 t-1\r\nHD\r\n");
    client.exchange("ms foo 1 ME k O1\r\nx\r\n", "NS kfoo O1\r\n");
    client.exchange("md nope k Ox\r\nmd foo C1234567 k\r\n", "NF knope Ox\r\nEX kfoo\r\n");
    client.exchange("ma foo k\r\n", "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n");
    client.exchange("ma num N0 J7 v k Ox t\r\n", "VA 1 knum Ox t-1\r\n7\r\n");
    client.exchange(
        "ma num v t D3 k\r\nma num MD\r\nma num k t T100\r\n",
        "VA 2 t-1 knum\r\n10\r\nHD\r\nHD knum t-1\r\n",
    );
    client.exchange("ma nope k Oa\r\nme nope\r\n", "NF knope Oa\r\nEN\r\n");
    client.exchange("ms foo 2 MA\r\nde\r\nmg foo v\r\n", "HD\r\nVA 5\r\nabcde\r\n");
    client.exchange("ms zz 2 MA N100\r\nde\r\nmg zz v\r\n", "HD\r\nVA 2\r\nde\r\n");
    client.exchange(
        "ms Zm9v 1 b F9\r\nx\r\nget foo\r\nmg Zm9v b v k\r\n",
        "HD\r\nVALUE foo 9 1\r\nx\r\nEND\r\nVA 1 kZm9v b\r\nx\r\n",
    );
    client.exchange("mg nope q\r\nmg foo q v\r\nms foo 1 q\r\ny\r\nmd foo q\r\nmn\r\n", "VA 1\r\nx\r\nMN\r\n");
}

#[test]
fn one_client_wins_the_recache_and_classic_commands_see_a_miss_meanwhile() {
    let server = RunningServer::start(&[]);
    let mut client = server.connect();
    client.exchange("mg foo N30 v t h u\r\nmg foo N30 v t h\r\n", "VA 0 t30 h0 W\r\n\r\nVA 0 t30 h0 Z\r\n\r\n");
    client.exchange(
        "get foo\r\ntouch foo 9\r\nincr foo 1\r\nappend foo 0 0 1\r\nx\r\n",
        "END\r\nNOT_FOUND\r\nNOT_FOUND\r\nNOT_STORED\r\n",
    );
    client.exchange(
        "ms foo 3 T100 E10\r\nold\r\nmg foo v c N30\r\nget foo\r\n",
        "HD\r\nVA 3 c10\r\nold\r\nVALUE foo 0 3\r\nold\r\nEND\r\n",
    );
    client.exchange(
        "mg foo R101 t\r\nmg foo R101\r\nget foo\r\n",
        "HD t100 W\r\nHD Z\r\nVALUE foo 0 3\r\nold\r\nEND\r\n",
    );
    client.exchange("md foo I C9\r\nmd foo I C10 T50 E20\r\nget foo\r\n", "EX\r\nHD\r\nEND\r\n");
    client.exchange("mg foo v c t\r\nmg foo v\r\n", "VA 3 c20 t50 X W\r\nold\r\nVA 3 Z X\r\nold\r\n");
    // With `I` an older CAS still stores, but the item stays stale.
    client.exchange("ms foo 5 C15 I E21\r\nolder\r\nmg foo v c t\r\n", "HD\r\nVA 5 c21 t50 Z X\r\nolder\r\n");
    client.exchange(
        "ms foo 3 C21\r\nnew\r\nmg foo v\r\nget foo\r\n",
        "HD\r\nVA 3\r\nnew\r\nVALUE foo 0 3\r\nnew\r\nEND\r\n",
    );
    assert_eq!((client.stat("delete_hits"), client.stat("lease_tokens")), (1, 0));
}

#[test]
fn leases_and_stale_items_do_not_interfere() {
    let server = RunningServer::start(&[]);
    let mut client = server.connect();
    let token = |client: &mut Client, stale: &str| {
        client.send("lease-get foo\r\n");
        let line = client.read_line();
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!((words[0], words[4].parse()), ("LVALUE", Ok(stale.len())), "{line}");
        client.expect(format!("{stale}\r\nEND\r\n"));
        words[2].to_owned()
    };
    // A placeholder voids no lease. Marking an item stale does, and the value is returned as stale.
    let first = token(&mut client, "");
    client.exchange("mg foo N30\r\n", "HD W\r\n");
    client.exchange(
        format!("lease-set foo {first} 0 0 2\r\nv1\r\nget foo\r\n"),
        "STORED\r\nVALUE foo 0 2\r\nv1\r\nEND\r\n",
    );
    client.exchange("md foo I\r\n", "HD\r\n");
    let second = token(&mut client, "v1");
    client.exchange("md foo I\r\n", "HD\r\n");
    client.exchange(format!("lease-set foo {second} 0 0 2\r\nv2\r\nmg foo v\r\n"), "NOT_STORED\r\nVA 2 X W\r\nv1\r\n");
    client.exchange("add foo 0 0 2\r\nv3\r\nmg foo v\r\n", "STORED\r\nVA 2\r\nv3\r\n");
}
