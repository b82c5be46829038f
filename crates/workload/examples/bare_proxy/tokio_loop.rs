//! tokio as the router uses it: one thread, a task for each client and one for each server, a queue of requests to each
//! server. What has been queued for a server by the time its task runs leaves in one `send`.

use super::framing::{reply_bytes, request_bytes, server_of};
use bytes::{Bytes, BytesMut};
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};

const CLIENT_READ_BYTES: usize = 2 << 10;
const SERVER_READ_BYTES: usize = 32 << 10;
const REQUESTS_PER_RECV: usize = 1_024;

struct Question {
    request: Bytes,
    reply: oneshot::Sender<Bytes>,
}

pub(crate) fn run(listener: net::TcpListener, servers: Vec<net::TcpStream>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut queues = Vec::new();
        for server in servers {
            let (sender, queue) = mpsc::unbounded_channel();
            tokio::spawn(serve_server(TcpStream::from_std(server)?, queue));
            queues.push(sender);
        }
        let queues: Arc<[_]> = queues.into();
        let listener = TcpListener::from_std(listener)?;
        loop {
            let (client, _) = listener.accept().await?;
            client.set_nodelay(true)?;
            tokio::spawn(serve_client(client, queues.clone()));
        }
    })
}

/// Asks what has arrived, waits for all replies, writes them at once, repeats.
async fn serve_client(mut client: TcpStream, queues: Arc<[mpsc::UnboundedSender<Question>]>) -> io::Result<()> {
    let (mut input, mut replies, mut output) = (BytesMut::new(), Vec::new(), Vec::new());
    loop {
        input.reserve(CLIENT_READ_BYTES);
        if client.read_buf(&mut input).await? == 0 {
            return Ok(());
        }
        while let Some(bytes) = whole(&input, request_bytes) {
            let request = input.split_to(bytes).freeze();
            let (reply, answered) = oneshot::channel();
            let server = server_of(&request, queues.len());
            queues[server].send(Question { request, reply }).map_err(|_| server_closed())?;
            replies.push(answered);
        }
        for reply in replies.drain(..) {
            output.extend_from_slice(&reply.await.map_err(|_| server_closed())?);
        }
        client.write_all(&output).await?;
        output.clear();
    }
}

/// Sends what is queued, and passes on replies, until the server closes the connection.
async fn serve_server(mut server: TcpStream, mut queue: mpsc::UnboundedReceiver<Question>) -> io::Result<()> {
    let asked = Mutex::new(VecDeque::new());
    let asked = || asked.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut reader, mut writer) = server.split();
    let send = async {
        let (mut questions, mut output) = (Vec::new(), Vec::new());
        while queue.recv_many(&mut questions, REQUESTS_PER_RECV).await > 0 {
            for Question { request, reply } in questions.drain(..) {
                output.extend_from_slice(&request);
                asked().push_back(reply);
            }
            writer.write_all(&output).await?;
            output.clear();
        }
        Ok(())
    };
    let receive = async {
        let mut input = BytesMut::new();
        loop {
            input.reserve(SERVER_READ_BYTES);
            if reader.read_buf(&mut input).await? == 0 {
                return Err(server_closed());
            }
            while let Some(bytes) = whole(&input, reply_bytes) {
                let reply: oneshot::Sender<Bytes> = asked().pop_front().expect("a server answers what it was asked");
                // A client that is gone does not wait for it.
                let _ = reply.send(input.split_to(bytes).freeze());
            }
        }
    };
    tokio::try_join!(send, receive).map(|((), ())| ())
}

fn whole(input: &[u8], bytes: impl Fn(&[u8]) -> Option<usize>) -> Option<usize> {
    if input.is_empty() { None } else { bytes(input) }
}

fn server_closed() -> io::Error {
    io::Error::new(ErrorKind::ConnectionAborted, "a server closed its connection")
}
