package dlock

import (
	"encoding/json"
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"
)

// The vector of the message grammar, which all clients play.
func TestMessagesAreReadAsTheVectorSays(t *testing.T) {
	data, err := os.ReadFile("../../conformance/vectors/messages.json")
	if os.IsNotExist(err) {
		t.Skip("the vector is in the repository only")
	}
	var vector struct {
		Messages []string
		Cases    []struct {
			Payload, Outcome, ID, Why string
			Fence                     int64
		}
	}
	if err == nil {
		err = json.Unmarshal(data, &vector)
	}
	if err != nil || len(vector.Cases) < 20 {
		t.Fatal(err, len(vector.Cases))
	}
	secrets := map[string]string{}
	for _, message := range vector.Messages {
		id, secret, _ := strings.Cut(message, " ")
		secrets[id] = secret
	}
	for _, c := range vector.Cases {
		outcome, mine, fence := "not mine", "", int64(0)
		if m, ok := parseMessage(latin1(c.Payload)); ok {
			mine = m.id + "." + strconv.Itoa(m.call)
			if secret, isOwn := secrets[mine]; isOwn {
				switch m.word {
				case "timeout", "cancelled", "refused":
					outcome = m.word
				case "granted":
					if outcome = "wake"; m.fence != 0 && m.secret == secret {
						outcome, fence = "granted", m.fence
					}
				default:
					outcome = "wake"
				}
			}
		}
		if outcome != c.Outcome || fence != c.Fence || (outcome != "not mine" && mine != c.ID) {
			t.Errorf("%q (%s): %s %q %d, not %s %q %d", c.Payload, c.Why, outcome, mine, fence, c.Outcome, c.ID, c.Fence)
		}
	}
}

// latin1 returns the bytes that a string of the vector stands for.
func latin1(text string) string {
	var bytes []byte
	for _, r := range text {
		bytes = append(bytes, byte(r))
	}
	return string(bytes)
}

func FuzzMessage(f *testing.F) {
	f.Add("Zk3vQ8m1T5y.12 granted 9007199254740991 Xw0aB-cD_ef")
	f.Add("Zk3vQ8m1T5y.1 timeout")
	f.Fuzz(func(t *testing.T, text string) {
		m, ok := parseMessage(text)
		if !ok {
			return
		}
		if m.call < 1 || m.fence < 0 || m.fence > maxFence {
			t.Fatalf("%q: %+v", text, m)
		}
		if prefix := m.id + "." + strconv.Itoa(m.call) + " "; len(text) < len(prefix) || text[:len(prefix)] != prefix {
			t.Fatalf("%q: %+v", text, m)
		}
	})
}

// FuzzReplies reads replies of any shape as the answers of the reading commands.
func FuzzReplies(f *testing.F) {
	f.Add([]byte(`["mode","shared","holders",[["token","t","count",1,"ephemeral",true]]]`))
	f.Add([]byte(`{"mode":"free","delay":-9223372036854775808}`))
	f.Add([]byte(`[[1,[["key","k"]]],null,"x"]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var decoded any
		if json.Unmarshal(data, &decoded) != nil {
			return
		}
		reply := asReply(decoded)
		readInspection(reply)
		readEach(reply, readWaiter)
		readEach(reply, readListed)
		readEach(reply, readIncident)
	})
}

// asReply turns JSON into the types of go-redis.
func asReply(value any) any {
	switch value := value.(type) {
	case float64:
		return int64(value)
	case []any:
		for i := range value {
			value[i] = asReply(value[i])
		}
	case map[string]any:
		m := map[any]any{}
		for name, item := range value {
			m[name] = asReply(item)
		}
		return m
	}
	return value
}

func TestErrorRepliesAreClassified(t *testing.T) {
	for _, c := range []struct {
		reply string
		want  error
	}{
		{"GRACE 1500 the server may have forgotten holds", ErrGrace},
		{"GRACE what", ErrGrace},
		{"DEADLOCK a -> b -> a", ErrDeadlock},
		{"QUEUEFULL too many", ErrQueueFull},
		{"ERR unknown command 'DLOCK.ACQUIRE', with args beginning with: ", ErrNoModule},
		{"ERR This instance has cluster support disabled", errList},
	} {
		if err := refusal("k", replyError(c.reply)); !isError(err, c.want) || !isError(err, nil) {
			t.Errorf("%s: %v", c.reply, err)
		}
	}
}

func TestADeadlockOfAnOwnerWithItselfIsRecognised(t *testing.T) {
	for text, want := range map[string]bool{
		"a -> a": true, "a -> b -> a -> b": true, "a -> b -> a": false, "ab -> a": false, "": false, " -> ": true, "a": false,
	} {
		if isOwnDeadlock(replyError("DEADLOCK "+text)) != want {
			t.Error(text)
		}
	}
}

type replyError string

func (e replyError) Error() string { return string(e) }
func (replyError) RedisError()     {}

func isError(err, want error) bool {
	if want == nil {
		return err != nil && err.Error() != ""
	}
	return errors.Is(err, want)
}
