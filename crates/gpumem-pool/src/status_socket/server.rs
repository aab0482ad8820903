//! The thread that serves the socket.

use super::answer;
use super::client::Client;
use super::descriptors::OpenDescriptor;
use super::place::SocketPlace;
use gpumem_device::internal::catch_panic;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Uid, geteuid};
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

pub(super) fn start(place: SocketPlace) -> io::Result<()> {
    answer::started();
    let serve = move || serve(&place.listener);
    std::thread::Builder::new().name("gpumem-status".into()).spawn(serve).map(drop)
}

fn serve(listener: &UnixListener) {
    let mut clients: Vec<Client> = Vec::new();
    // For the life of the process.
    let _kept = OpenDescriptor::new(listener);
    loop {
        let mut waits = vec![PollFd::new(listener, PollFlags::IN)];
        waits.extend(clients.iter().map(|client| PollFd::new(&client.stream, client.awaits())));
        // An interrupted call is repeated. Nothing else can fail but for lack of kernel memory.
        if poll(&mut waits, None).is_err() {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        let mut ready = waits.iter().map(|wait| !wait.revents().is_empty()).collect::<Vec<_>>().into_iter();
        drop(waits);
        let has_new = ready.next().unwrap_or(false);
        // The rest is in the order of the clients. A panic ends the client, and not the thread.
        let is_over = |client: &mut Client| {
            ready.next().unwrap_or(false) && !catch_panic(|| client.go_on()).unwrap_or(false)
        };
        clients.extract_if(.., is_over).for_each(Client::end);
        if has_new {
            accept(listener, &mut clients);
        }
    }
}

fn accept(listener: &UnixListener, clients: &mut Vec<Client>) {
    let stream = match listener.accept() {
        Ok((stream, _)) => stream,
        Err(error) => {
            // Without descriptors the client waits until one is free.
            if !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) {
                std::thread::sleep(Duration::from_millis(50));
            }
            return;
        }
    };
    if stream.set_nonblocking(true).is_err() {
        return;
    }
    if let Err(problem) = check_peer(&stream) {
        return Client::refuse(stream, &problem);
    }
    if clients.len() >= CLIENT_COUNT_MAX {
        // One that does not read its answer makes way.
        let stuck = clients.iter().enumerate().filter(|(_, client)| client.is_stuck());
        match stuck.min_by_key(|(_, client)| client.since).map(|(index, _)| index) {
            Some(index) => clients.swap_remove(index).end(),
            None => {
                return Client::refuse(
                    stream,
                    "too many clients are connected; end some of them, and connect again",
                );
            }
        }
    }
    clients.push(Client::new(stream));
}

fn check_peer(stream: &UnixStream) -> Result<(), String> {
    let peer =
        socket_peercred(stream).map_err(|error| format!("the user of the client is unknown ({error})"))?;
    check_user(peer.uid, geteuid())
}

/// Only the user of the process may ask: answers have names and addresses, and requests write files and change limits.
fn check_user(peer: Uid, own: Uid) -> Result<(), String> {
    let (peer, own) = (peer.as_raw(), own.as_raw());
    if peer == own {
        return Ok(());
    }
    Err(format!(
        "this process belongs to user {own}, and the client to user {peer}; run the client as user {own}, for example with `sudo -u '#{own}'`"
    ))
}

const CLIENT_COUNT_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_users_are_refused() {
        let user = Uid::from_raw;
        assert_eq!(check_user(user(1000), user(1000)), Ok(()));
        let error = check_user(user(0), user(1000)).unwrap_err();
        assert!(error.contains("belongs to user 1000, and the client to user 0"), "{error}");
    }
}
