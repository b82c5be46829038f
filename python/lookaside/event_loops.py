"""The event loops that use an `AsyncClient` and its pools: one channel to the client's thread for each."""

import asyncio
import weakref

from lookaside._lookaside import Channel, ClientCore

#: How often `close` looks whether the last call has ended, in seconds: soon at first, then more rarely.
CLOSE_INTERVALS_S = (0.001, 0.05)

Channels = dict[asyncio.AbstractEventLoop, Channel]


class EventLoops:
    """The channels of a client. Dropped with it, it ends them."""

    def __init__(self, core: ClientCore) -> None:
        self._core = core
        self._channels: Channels = {}
        weakref.finalize(self, end_channels, self._channels).atexit = False

    def open_channel(self, loop: asyncio.AbstractEventLoop) -> Channel:
        """The channel of the running event loop."""
        channel = self._channels.get(loop)
        if channel is None:
            self._core.check_open()
            for ended in [other for other in list(self._channels) if other.is_closed()]:
                abandoned = self._channels.pop(ended, None)
                if abandoned is not None:
                    abandoned.abandon()
            channel = Channel(self._core, loop)
            loop.add_reader(channel.fileno(), channel.complete)
            self._channels[loop] = channel
        return channel

    async def close(self) -> None:
        """Waits for the calls of the running event loop, and their loaders, then ends its channel."""
        loop = asyncio.get_running_loop()
        channel = self._channels.get(loop)
        if channel is None:
            return
        interval, interval_max = CLOSE_INTERVALS_S
        while channel.outstanding:
            await asyncio.sleep(interval)
            interval = min(2 * interval, interval_max)
        if self._channels.pop(loop, None) is not None:
            loop.remove_reader(channel.fileno())


def end_channels(channels: Channels) -> None:
    """Ends the channels of a client that was dropped, so that no call waits. Any thread may run this."""
    for loop, channel in channels.items():
        try:
            loop.call_soon_threadsafe(end_channel, loop, channel)
        except RuntimeError:
            # The event loop is closed.
            channel.abandon()
    channels.clear()


def end_channel(loop: asyncio.AbstractEventLoop, channel: Channel) -> None:
    """Runs on the event loop's thread."""
    loop.remove_reader(channel.fileno())
    channel.abandon()
