// Package remote reads checkpoints where they lie: a model of the Hugging Face hub, hf://ORG/NAME, objects of a
// store, s3://BUCKET/PREFIX, or the directory of a web server, https://HOST/DIR/. Open returns a source.Dir.
// Bytes are read by ranges, as they are needed; a request that fails or breaks off is repeated from the byte
// where it broke. A Store writes objects.
package remote

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"dsmoe/text"

	"golang.org/x/sync/singleflight"
)

// Client makes requests and counts them. Fields are set before the first request.
type Client struct {
	Context context.Context // ends all requests
	Cache   string          // directory that keeps weights that were read; "" keeps none
	Headers string          // directory that keeps listings, configs and headers of the hub; "" keeps none
	Part    int64           // bytes of the smallest part of an upload that stores take, but for the last one
	Wait    time.Duration   // half of the longest wait before a request is repeated; doubles with each repetition
	Waiting func(string)    // called, one call at a time, with why requests have no answer for a while; may be nil

	bytes, requests atomic.Int64
	answered        atomic.Bool // a server answered, if only that it is busy
	http            http.Client
	runs            runs
	blocks          sync.Map           // paths of blocks in Cache that are as their hashes say
	flights         singleflight.Group // reads each block of Cache once at a time
	secrets         sync.Map           // URLs with user and query, by Name
	telling         sync.Mutex
	told            time.Time // when Waiting was called last
}

// The limits on a server. A model needs none of them; a hostile server would make its client wait or
// allocate for ever.
const (
	maxHeaders   = 256 << 10        // bytes of a response's headers
	maxRedirects = 10               // of one request
	maxTries     = 12               // failures in a row without a byte: where 30 % fail, these are 1 in 2 million
	firstTries   = 5                // the same before any server answered: a wrong address fails soon
	maxWait      = time.Minute      // between two tries
	stall        = time.Minute      // without a byte, after which a response counts as broken
	maxListing   = 64 << 20         // bytes of a page of a listing
	maxDocument  = 10 * time.Minute // for a page of a listing
	maxFiles     = 100_000          // in one listing
	trusted      = 3                // repetitions that a server's Retry-After may make sooner than these waits
	silence      = 5 * time.Second  // without an answer, after which Waiting is called
	between      = 10 * time.Second // two calls of Waiting
)

// connections is the number of connections to one server. A range that is read by a worker keeps one
// busy: they are as many as convert has workers, and some for the reader of headers.
const connections = 24

// NewClient returns a client without caches. Its connections count what they receive.
func NewClient() *Client {
	var p http.Protocols
	p.SetHTTP1(true) // of HTTP/2 Go opens one connection per server: its window limits all streams together
	c := &Client{Context: context.Background(), Part: 5 << 20, Wait: 200 * time.Millisecond}
	c.http = http.Client{CheckRedirect: checkRedirect,
		Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, Protocols: &p, DisableCompression: true,
			DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				conn, err := (&net.Dialer{Timeout: 30 * time.Second}).DialContext(ctx, network, address)
				if err != nil {
					return nil, err
				}
				return &wire{conn, &c.bytes}, nil
			},
			TLSHandshakeTimeout: 30 * time.Second, ResponseHeaderTimeout: stall,
			MaxResponseHeaderBytes: maxHeaders, MaxConnsPerHost: connections, MaxIdleConnsPerHost: connections,
			IdleConnTimeout: 90 * time.Second}}
	return c
}

// wire is a connection that counts the bytes that it receives.
type wire struct {
	net.Conn
	bytes *atomic.Int64
}

func (w *wire) Read(dst []byte) (int, error) {
	n, err := w.Conn.Read(dst)
	w.bytes.Add(int64(n))
	return n, err
}

// Traffic returns the bytes that came over connections, with headers and responses that were cut off, and the number of
// requests.
func (c *Client) Traffic() (bytes, requests int64) { return c.bytes.Load(), c.requests.Load() }

// checkRedirect follows redirects to web servers alone, and takes the token to no other host.
func checkRedirect(r *http.Request, via []*http.Request) error {
	first := via[0].URL
	switch {
	case r.URL.Scheme != "https" && r.URL.Scheme != "http":
		return final(fmt.Sprintf("is redirected to %s:, which is no web server", text.Quote(r.URL.Scheme)))
	case first.Scheme == "https" && r.URL.Scheme == "http":
		return final("is redirected from https to http, which anyone on the way can change")
	case len(via) >= maxRedirects:
		return final(fmt.Sprintf("is redirected more than %d times: in a circle?", maxRedirects))
	case r.URL.Host != first.Host:
		r.Header.Del("Authorization")
		r.Header.Del("X-Amz-Security-Token")
	}
	r.Header.Del("Referer") // it would have the query
	return nil
}

// do makes one request. A status other than 200, 204, 206 and 416 is a failure, in the words of explain.
func (c *Client) do(r *http.Request, explain func(*http.Response) *failure) (*http.Response, error) {
	c.requests.Add(1)
	resp, err := c.http.Do(r)
	if err != nil {
		return nil, requestFailure(err)
	}
	c.answered.Store(true)
	switch resp.StatusCode {
	case http.StatusOK, http.StatusNoContent, http.StatusPartialContent, http.StatusRequestedRangeNotSatisfiable:
		return resp, nil
	}
	start, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10)) // to its end, so that the connection can be used again
	resp.Body.Close()
	resp.Body = io.NopCloser(bytes.NewReader(start))
	f := explain(resp)
	f.wait, f.code = retryAfter(resp.Header.Get("Retry-After")), resp.StatusCode
	f.final = f.code != http.StatusTooManyRequests && f.code != http.StatusRequestTimeout && f.code < 500
	return nil, f
}

// document requests a document that is short, and reads it whole. request makes the request anew for each try. path
// names the document.
func (c *Client) document(path string, request func(ctx context.Context) (*http.Request, error),
	explain func(*http.Response) *failure) (data []byte, header http.Header, err error) {
	since := time.Now()
	for tries := 1; ; tries++ {
		if data, header, err = c.documentOnce(request, explain); err == nil {
			return data, header, nil
		}
		if err = c.pause(path, err, tries, since); err != nil {
			return nil, nil, err
		}
	}
}

func (c *Client) documentOnce(request func(ctx context.Context) (*http.Request, error),
	explain func(*http.Response) *failure) ([]byte, http.Header, error) {
	ctx, cancel := context.WithTimeout(c.Context, maxDocument)
	defer cancel()
	r, err := request(ctx)
	if err != nil {
		return nil, nil, final("its URL cannot be used")
	}
	resp, err := c.do(r, explain)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxListing))
	switch {
	case err != nil:
		return nil, nil, &failure{cause: "the connection broke", wait: -1}
	case len(data) == maxListing:
		return nil, nil, final("the server's answer has more than " + text.Bytes(maxListing))
	}
	return data, resp.Header, nil
}

// pause waits before a request for path is repeated for the n-th time: a random part of a time that doubles, and at least
// as long as the server asks for. It returns the error if the request is not to be repeated. There is no answer since then.
func (c *Client) pause(path string, err error, n int, since time.Time) error {
	if c.Context.Err() != nil {
		return c.Context.Err()
	}
	var f *failure
	if errors.As(err, &f) && f.final {
		return err
	}
	most := maxTries
	if !c.answered.Load() {
		most = firstTries
	}
	if n >= most {
		return fmt.Errorf("%w, after %d tries", err, n)
	}
	wait := rand.N(min(c.Wait<<n, maxWait))
	if f != nil && f.wait >= 0 && (n <= trusted || f.wait > wait) {
		wait = f.wait
	}
	c.tell(path, fmt.Sprintf("%s; try %d of %d in %s", err, n+1, most, wait.Round(time.Second)), time.Since(since)+wait)
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-c.Context.Done():
		return c.Context.Err()
	}
}

// tell calls Waiting if there is no answer for too long, unless it was called a moment ago.
func (c *Client) tell(path, why string, without time.Duration) {
	c.telling.Lock()
	defer c.telling.Unlock()
	if c.Waiting != nil && without >= silence && time.Since(c.told) >= between {
		c.told = time.Now()
		c.Waiting(path + ": " + why)
	}
}

// pages are the pages of a listing that were read, by what names them.
type pages map[string]bool

// read refuses a page that was read already.
func (p pages) read(page string) error {
	if p[page] {
		return final("the server's listing goes on with a page that it had before")
	}
	p[page] = true
	return nil
}

// requestFailure strips an error of the URL, which may hold a signature.
func requestFailure(err error) error {
	var of *url.Error
	if errors.As(err, &of) {
		err = of.Err
	}
	var f *failure
	var unknown *net.DNSError
	var untrusted *tls.CertificateVerificationError
	switch {
	case errors.As(err, &f), errors.Is(err, context.Canceled):
		return err
	case errors.As(err, &unknown) && unknown.IsNotFound:
		return final("the name of its server is not found: " + unknown.Err)
	case errors.As(err, &untrusted), strings.Contains(err.Error(), "Location header"):
		return final("cannot be reached: " + withoutSecrets(err.Error()))
	case strings.Contains(err.Error(), "server response headers exceeded"):
		return final("the server sends more than " + text.Bytes(maxHeaders) + " of headers")
	}
	return &failure{cause: "cannot be reached: " + withoutSecrets(err.Error()), wait: -1}
}

// retryAfter is the time that a Retry-After asks for, in seconds or as a date; -1 without one.
func retryAfter(header string) time.Duration {
	if n, err := strconv.Atoi(header); err == nil && n >= 0 {
		return min(time.Duration(min(n, 3600))*time.Second, maxWait)
	}
	if at, err := http.ParseTime(header); err == nil {
		return min(max(time.Until(at), 0), maxWait)
	}
	return -1
}
