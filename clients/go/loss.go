package dlock

import (
	"context"
	"strings"
)

// The reason of a loss is in the log of the server. The client reads the log once, after it has reported the loss, so
// that the report is not delayed.

// endings has a text for each kind of incident that ends a hold.
var endings = map[string]string{
	"broken":       "an operator broke the lock",
	"expired":      "the lease ended at the server",
	"disconnected": "its connection was closed",
	"vanished":     "its key was deleted, evicted, flushed or overwritten",
}

// logLength is the number of entries of the log that are searched for the reason.
const logLength = 20

// lostError returns the error of a loss with a reason that the client knows.
func (h *hold) lostError(reason string, err error) *LostError {
	return &LostError{Key: h.key, Fence: h.fence, Reason: reason, Err: err}
}

// endedElsewhere returns the error of a hold that the server does not have any more. The client must be locked, and
// reads the log after unlock.
func (h *hold) endedElsewhere() *LostError {
	lost := h.lostError("an operator or another client ended it, or it expired", nil)
	lost.read = make(chan struct{})
	h.c.after = append(h.c.after, func() { go h.c.readReason(lost, h.token) })
	return lost
}

// loseElsewhere loses a hold that the server does not have any more, unless it has ended.
func (h *hold) loseElsewhere() {
	if h.state == holding {
		h.lose(h.endedElsewhere())
	}
}

// readReason finds the end of a hold in the log of its server.
func (c *Client) readReason(lost *LostError, token string) {
	defer close(lost.read)
	ctx, cancel := context.WithTimeout(context.Background(), answerLimit)
	defer cancel()
	server, err := c.serverOf(ctx, lost.Key)
	if err != nil {
		return
	}
	reply, err := onceAt(ctx, server, "DLOCK.LOG", "COUNT", logLength, "KEY", lost.Key).Result()
	if err != nil {
		return
	}
	for _, entry := range readEach(reply, readIncident) {
		if endings[entry.What] != "" && isAbout(entry, lost, token) {
			lost.logged.Store(&entry)
			return
		}
	}
}

// isAbout returns whether an entry is about the end of this hold. An entry without a token is about all holds of the
// key: then its time, in whole ms, must not be before the fence, which is the time of the grant in µs.
func isAbout(entry Incident, lost *LostError, token string) bool {
	if entry.Token == "" {
		return entry.Time.UnixMicro() >= lost.Fence-1000
	}
	return entry.Fence == lost.Fence && strings.HasPrefix(token, strings.TrimSuffix(entry.Token, "..."))
}

// withReason returns the error. If it is a loss, it waits until the client has read the reason, but not for long.
func withReason(err error) error {
	if lost, ok := err.(*LostError); ok && lost.read != nil {
		answeredSoon(lost.read)
	}
	return err
}
