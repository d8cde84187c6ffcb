//! The few system calls that neither monoio nor std offers on a borrowed descriptor, and all of the engine's unsafe code but one call (`request::equal`).
//!
//! All but [`wait_for`] return at once: sockets accepted by io_uring are blocking, hence MSG_DONTWAIT on each call.
#![allow(unsafe_code, reason = "libc calls on descriptors owned by a Link, a listener or a mailbox, and on the ring of a shard")]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// Reads what is there; `WouldBlock` when nothing is.
pub(crate) fn receive(fd: RawFd, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the pointer and the length are those of a live, exclusively borrowed slice.
    let n = unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_DONTWAIT) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// Writes as much as the kernel takes; `WouldBlock` when that is nothing.
pub(crate) fn send(fd: RawFd, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: the pointer and the length are those of a live slice, which the call only reads.
    let n = unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// Takes one waiting connection from a listener that does not block.
pub(crate) fn accept(listener: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: no address is asked for, so no memory is passed.
    let fd = unsafe { libc::accept4(listener, std::ptr::null_mut(), std::ptr::null_mut(), libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(adopt(fd))
}

/// Makes the owner of a descriptor that came as a number: from `accept`, or from another shard through a mailbox.
pub(crate) fn adopt(fd: RawFd) -> OwnedFd {
    // SAFETY: the number names an open socket that nobody else owns: `accept` just made it, or the sending shard gave it up
    // with `IntoRawFd` for exactly one message.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Ends one or both directions; whoever waits on the descriptor wakes up.
pub(crate) fn shutdown(fd: RawFd, how: i32) {
    // SAFETY: takes numbers only. An error means that it is ended already.
    unsafe { libc::shutdown(fd, how) };
}

/// How long sent bytes may stay unacknowledged before the kernel gives the connection up.
pub(crate) fn set_user_timeout(fd: RawFd, limit: Duration) {
    let millis = i32::try_from(limit.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: the pointer is to a live i32 and the length is its size. A failure leaves the kernel's own limit.
    unsafe {
        libc::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, (&raw const millis).cast(), 4);
    }
}

/// Has the connect of a writable socket succeeded?
pub(crate) fn is_connected(fd: RawFd) -> bool {
    let (mut error, mut len) = (0i32, 4);
    // SAFETY: the pointers are to a live i32 and to its size.
    let asked = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, (&raw mut error).cast(), &raw mut len) };
    asked == 0 && error == 0
}

/// Bytes the kernel has taken and the other side has not.
pub(crate) fn unsent(fd: RawFd) -> i32 {
    let mut bytes = 0i32;
    // SAFETY: SIOCOUTQ (TIOCOUTQ on Linux) writes one int to the live i32 it is given.
    let asked = unsafe { libc::ioctl(fd, libc::TIOCOUTQ, &raw mut bytes) };
    if asked == 0 { bytes } else { 0 }
}

/// Did the other side end its direction, or the connection break? What it sent before may still wait to be read.
pub(crate) fn is_gone(fd: RawFd) -> bool {
    let mut asked = libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: the pointer is to one live `pollfd`, and that is how many there are. With no time to wait it returns at once.
    let some = unsafe { libc::poll(&raw mut asked, 1, 0) };
    some == 1 && asked.revents & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) != 0
}

/// Resets a connection at once; whoever waits on the descriptor wakes up. (SO_LINGER of zero seconds makes only the close a reset, and a shutdown
/// in front of it, which is what wakes those who wait, is an end of file.)
pub(crate) fn reset(fd: RawFd) {
    const LEN: libc::socklen_t = 16;
    const { assert!(std::mem::size_of::<libc::sockaddr>() == LEN as usize) };
    // AF_UNSPEC is zero.
    let nowhere = libc::sockaddr { sa_family: 0, sa_data: [0; 14] };
    // SAFETY: the pointer is to a live `sockaddr`, whose size LEN is. Disconnecting waits for nobody; a failure means that it is ended already.
    unsafe { libc::connect(fd, &raw const nowhere, LEN) };
}

/// What io_uring_enter(2) calls `struct io_uring_getevents_arg`.
#[repr(C)]
struct GetEvents {
    sigmask: u64,
    sigmask_size: u32,
    min_wait: u32,
    timespec: u64,
}

/// What the kernel calls `struct __kernel_timespec`.
#[repr(C)]
struct Timespec {
    seconds: i64,
    nanos: i64,
}

const ENTER_GETEVENTS: u32 = 1;
const ENTER_EXT_ARG: u32 = 1 << 3;
/// More than a submission queue can have.
const ALL: u32 = 1 << 16;

/// May this thread wait for events of the ring? Only the thread that made it may when it is a SINGLE_ISSUER with DEFER_TASKRUN.
pub(crate) fn may_enter(ring: RawFd) -> bool {
    // SAFETY: takes numbers only, and a null pointer of length zero.
    unsafe { libc::syscall(libc::SYS_io_uring_enter, ring, 0_u32, 0_u32, ENTER_GETEVENTS, std::ptr::null::<u8>(), 0_usize) >= 0 }
}

/// Hands everything that is queued on the ring to the kernel, then waits for so many events, `at_most` so long. An error only makes the wait
/// shorter: what is lasting, whoever waits for the ring next is told as well.
pub(crate) fn wait_for(ring: RawFd, events: u32, at_most: Duration) {
    let time = Timespec { seconds: at_most.as_secs().try_into().unwrap_or(i64::MAX), nanos: at_most.subsec_nanos().into() };
    let wait = GetEvents { sigmask: 0, sigmask_size: 0, min_wait: 0, timespec: (&raw const time).expose_provenance() as u64 };
    // Two calls: one that submits fewer than it said does not wait, and how many there are is not known here.
    // SAFETY: takes numbers only, and a null pointer of length zero. It starts what the runtime has queued, whose memory is valid from the moment
    // it was queued until its completion is taken: that is the contract of the queue (`SubmissionQueue::push`).
    unsafe { libc::syscall(libc::SYS_io_uring_enter, ring, ALL, 0_u32, 0_u32, std::ptr::null::<u8>(), 0_usize) };
    // SAFETY: `wait`, of the size that is told, and `time`, to which it points, outlive the call, which only reads them.
    unsafe {
        libc::syscall(
            libc::SYS_io_uring_enter,
            ring,
            0_u32,
            events,
            ENTER_GETEVENTS | ENTER_EXT_ARG,
            &raw const wait,
            size_of::<GetEvents>(),
        )
    };
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (here, listener.accept().unwrap().0)
    }

    #[test]
    fn the_kernel_is_told_how_long_to_wait() {
        let (here, _there) = pair();
        set_user_timeout(here.as_raw_fd(), Duration::from_millis(4_321));
        assert_eq!(socket2::SockRef::from(&here).tcp_user_timeout().unwrap(), Some(Duration::from_millis(4_321)));
    }

    #[test]
    fn who_is_gone_is_seen_behind_what_waits_to_be_read() {
        let (here, mut there) = pair();
        there.write_all(b"not read").unwrap();
        assert!(!is_gone(here.as_raw_fd()));
        drop(there);
        let begun = std::time::Instant::now();
        while !is_gone(here.as_raw_fd()) {
            assert!(begun.elapsed() < Duration::from_secs(5));
        }
    }

    #[test]
    fn a_reset_is_no_end_of_file() {
        let (here, mut there) = pair();
        reset(here.as_raw_fd());
        shutdown(here.as_raw_fd(), libc::SHUT_RDWR);
        assert_eq!(there.read(&mut [0; 8]).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    }
}
