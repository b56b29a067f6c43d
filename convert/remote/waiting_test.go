package remote

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// pipes is a listener whose connections are pipes: in a bubble of synctest nothing else can be waited for.
type pipes chan net.Conn

// Accept returns the next connection.
func (p pipes) Accept() (net.Conn, error) {
	c, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

// Close does nothing: close(p) ends the listener.
func (p pipes) Close() error { return nil }

// Addr returns no address.
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

// tellingClient runs test in a bubble, whose time passes at once, with a client of a server, and what that client told.
func tellingClient(t *testing.T, handler http.HandlerFunc, test func(t *testing.T, c *Client, told *[]string)) {
	synctest.Test(t, func(t *testing.T) {
		listener, told := make(pipes), []string{}
		server := http.Server{Handler: handler}
		go server.Serve(listener)
		c := NewClient()
		c.Waiting = func(why string) { told = append(told, why) }
		transport := c.http.Transport.(*http.Transport)
		transport.DialContext = func(context.Context, string, string) (net.Conn, error) {
			here, there := net.Pipe()
			listener <- there
			return here, nil
		}
		defer func() {
			transport.CloseIdleConnections()
			close(listener)
			server.Close()
		}()
		test(t, c, &told)
	})
}

// get reads a document of the server.
func (c *Client) get() (string, error) {
	data, _, err := c.document("http://server/x", func(ctx context.Context) (*http.Request, error) {
		return http.NewRequestWithContext(ctx, http.MethodGet, "http://server/x", nil)
	}, explainStatus)
	return string(data), err
}

// TestRetryAfter: a server is asked again no sooner than it says, and not without end at once.
func TestRetryAfter(t *testing.T) {
	for header, least := range map[string]time.Duration{"0": 5 * time.Second, "": 5 * time.Second, "20": 220 * time.Second,
		"9999": 11 * maxWait, "Mon, 01 Jan 2035 00:00:00 GMT": 11 * maxWait} {
		tries := 0
		busy := func(w http.ResponseWriter, r *http.Request) {
			tries++
			w.Header().Set("Retry-After", header)
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		tellingClient(t, busy, func(t *testing.T, c *Client, told *[]string) {
			begin := time.Now()
			_, err := c.get()
			require.ErrorContains(t, err, `503 Service Unavailable", after 12 tries`)
			require.Equal(t, maxTries, tries)
			require.GreaterOrEqual(t, time.Since(begin), least, header)
			require.NotEmpty(t, *told)
			require.Regexp(t, `^http://server/x: the server answers "503 Service Unavailable"; try \d+ of 12 in (1m0|[0-9]+)s$`, (*told)[0])
			require.LessOrEqual(t, len(*told), int(time.Since(begin)/between)+1)
		})
	}
	tries := 0
	once := func(w http.ResponseWriter, r *http.Request) {
		if tries++; tries == 1 {
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		fmt.Fprint(w, "x")
	}
	tellingClient(t, once, func(t *testing.T, c *Client, told *[]string) {
		begin := time.Now()
		text, err := c.get()
		require.NoError(t, err)
		require.Equal(t, "x", text)
		require.Equal(t, 7*time.Second, time.Since(begin))
		require.Len(t, *told, 1)
		require.Contains(t, (*told)[0], "; try 2 of 12 in 7s")
	})
}

// TestStall: a response that stops is given up after a minute, and the rest is asked for, with a word.
func TestStall(t *testing.T) {
	large := strings.Repeat("0123456789", 20_000)
	stops := func(w http.ResponseWriter, r *http.Request) {
		var from, to int
		fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &from, &to)
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to, len(large)))
		w.Header().Set("Content-Length", fmt.Sprint(to+1-from))
		w.WriteHeader(http.StatusPartialContent)
		if from == 100_000 {
			fmt.Fprint(w, large[from:from+5000])
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return
		}
		fmt.Fprint(w, large[from:to+1])
	}
	tellingClient(t, stops, func(t *testing.T, c *Client, told *[]string) {
		base, err := url.Parse("http://server/dir/")
		require.NoError(t, err)
		d := &dir{c: c, o: &web{base: base}, files: map[string]*file{}}
		f := &file{dir: d, name: "large.bin", size: int64(len(large))}
		begin, got := time.Now(), make([]byte, 50_000)
		_, err = f.ReadAt(got, 100_000)
		require.NoError(t, err)
		require.Equal(t, large[100_000:150_000], string(got))
		require.Equal(t, stall, time.Since(begin))
		require.Equal(t, []string{"http://server/dir/large.bin: the connection broke at byte 105000; asking for the rest"}, *told)
	})
}

// TestInsecureRedirect: a request does not go on from https to http, and one to another https server does.
func TestInsecureRedirect(t *testing.T) {
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "{}") }))
	defer plain.Close()
	to := ""
	secure := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/there" {
			fmt.Fprint(w, "{}")
			return
		}
		http.Redirect(w, r, to, http.StatusFound)
	}))
	defer secure.Close()
	c := NewClient()
	c.http.Transport.(*http.Transport).TLSClientConfig = secure.Client().Transport.(*http.Transport).TLSClientConfig
	ask := func(to string) (string, error) {
		data, _, err := c.document("x", func(ctx context.Context) (*http.Request, error) {
			return http.NewRequestWithContext(ctx, http.MethodGet, to, nil)
		}, explainStatus)
		return string(data), err
	}
	to = plain.URL
	_, err := ask(secure.URL)
	require.ErrorContains(t, err, "is redirected from https to http, which anyone on the way can change")
	to = secure.URL + "/there"
	text, err := ask(secure.URL)
	require.NoError(t, err)
	require.Equal(t, "{}", text)
}

// TestEndlessListings: a listing that goes on with a page that was read, or that is longer than any model's, is refused.
func TestEndlessListings(t *testing.T) {
	for want, answer := range map[string]struct {
		files, requests int
		next            string // the page that follows page n
	}{
		"goes on with a page that it had before":  {115, 1, "?recursive=true"},
		"goes on with a page that it had before.": {115, 2, "?recursive=true&cursor=1"},
		"lists more than 100000 files":            {50_001, 2, "?recursive=true&cursor=%d"},
	} {
		requests := 0
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			requests++
			next := answer.next
			if strings.Contains(next, "%") {
				next = fmt.Sprintf(next, requests)
			}
			w.Header().Set("Link", fmt.Sprintf(`<http://%s%s%s>; rel="next"`, r.Host, r.URL.Path, next))
			one := `{"type":"file","path":"a","size":1}`
			fmt.Fprint(w, "["+one+strings.Repeat(","+one, answer.files-1)+"]")
		}))
		t.Setenv("HF_ENDPOINT", s.URL)
		_, _, err := NewClient().Open("hf://org/model@"+strings.Repeat("0", 40), func(string) bool { return false }, nil)
		require.ErrorContains(t, err, strings.TrimSuffix(want, "."))
		require.Equal(t, answer.requests, requests, want)
		s.Close()
	}
}
