package remote

// Reading a range of a file, whatever breaks meanwhile.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"dsmoe/text"
)

// origin is a place whose files are read by ranges.
type origin interface {
	// path names a file in messages; "" is the directory.
	path(file string) string
	// list returns the files, at least those whose names begin with below. all is false if there may be more.
	list(c *Client, below string) (list []Entry, all bool, err error)
	// fetch requests the bytes of a file from offset on, up to the one before end; all of them if
	// end is negative.
	fetch(ctx context.Context, c *Client, file string, offset, end int64) (*part, error)
}

// Entry is a file of a listing, or an object of a store.
type Entry struct {
	Name     string `json:"name"`
	Size     int64  `json:"size"`     // in bytes; -1 if the listing does not have it
	Identity string `json:"identity"` // ETag or hash: another one means other bytes; "" if the listing has none
}

// part is an answer to fetch.
type part struct {
	body     io.ReadCloser // from offset on; nil if the file ends before
	size     int64         // of the whole file; -1 if the server does not say it
	identity string        // of the file's bytes; "" if the server has none
}

var contentRange = regexp.MustCompile(`^bytes (?:([0-9]+)-([0-9]+)|\*)/([0-9]+)$`)

// identityOf is what tells the file's bytes from others: its ETag or else its time, but not an empty ETag, nor the time of
// files that were packed without theirs, in 1970 or 1980.
func identityOf(header http.Header) string {
	if tag := strings.TrimPrefix(header.Get("ETag"), "W/"); strings.Trim(tag, `"`) != "" {
		return tag
	}
	at := header.Get("Last-Modified")
	if t, err := http.ParseTime(at); err == nil && t.Year() <= 1980 {
		return ""
	}
	return at
}

// readPart checks that a response has the range that was asked for.
func readPart(resp *http.Response, offset, end int64) (*part, error) {
	p := &part{body: resp.Body, identity: identityOf(resp.Header), size: resp.ContentLength}
	wrong := func(what string, is error) (*part, error) {
		resp.Body.Close()
		return nil, &failure{cause: fmt.Sprintf("the server sends %s, where bytes %d-%d were asked for", what, offset, end-1),
			hint: "dsmoe reads files by ranges, which this server does not give; download the files", is: is, final: true}
	}
	encoding := resp.Header.Get("Content-Encoding")
	switch {
	case encoding != "" && !strings.EqualFold(encoding, "identity"):
		return wrong("a compressed file", nil)
	case resp.StatusCode == http.StatusOK && offset > 0:
		return wrong("the whole file", errWhole)
	case resp.StatusCode == http.StatusOK:
		return p, nil
	}
	header := resp.Header.Get("Content-Range")
	other := "the range " + text.Quote(header)
	m := contentRange.FindStringSubmatch(header)
	if m == nil {
		return wrong(other, nil)
	}
	var err error
	if p.size, err = strconv.ParseInt(m[3], 10, 64); err != nil {
		return wrong(other, nil)
	}
	if resp.StatusCode == http.StatusRequestedRangeNotSatisfiable {
		if offset < p.size {
			return wrong("no range", nil)
		}
		resp.Body.Close()
		p.body = nil
		return p, nil
	}
	last := p.size - 1
	if end >= 0 {
		last = min(last, end-1)
	}
	if m[1] != strconv.FormatInt(offset, 10) || m[2] != strconv.FormatInt(last, 10) {
		return wrong(other, nil)
	}
	return p, nil
}

// errWhole is the failure of a server that sends a whole file where a range was asked for.
var errWhole = errors.New("no range")

// stream reads the bytes of a file from at on, up to the one before end.
type stream struct {
	f       *file
	at, end int64 // end is negative for the end of the file
	tries   int   // failures since it went on
	small   bool  // a whole file that is kept in memory
	got     int64 // bytes since the last failure
	waits   int   // of a run, the call of takeRun since which it waits to be read on

	body   io.ReadCloser
	cancel context.CancelFunc
	dog    *time.Timer // cancels a response that stalls
}

// progress is the bytes after which a response that breaks off counts as a step forward: the rest is asked
// for at once.
const progress = 512

// Read reads, and asks again for what breaks off. Errors are of type *problem.Error.
func (s *stream) Read(dst []byte) (int, error) {
	c, since := s.f.dir.c, time.Now() // no byte came since then
	for {
		if s.end >= 0 && s.at >= s.end {
			return 0, io.EOF
		}
		n, err := s.attempt(dst)
		if n > 0 || err == io.EOF {
			return n, err
		}
		if err == nil {
			continue
		}
		s.Close()
		if s.got >= progress {
			s.tries = 0
			c.tell(s.f.Path(), err.Error()+"; asking for the rest", time.Since(since))
			err = c.Context.Err()
		} else {
			s.tries++
			err = c.pause(s.f.Path(), err, s.tries, since)
		}
		if s.got = 0; err != nil {
			return 0, about(s.f.Path(), err)
		}
	}
}

// attempt reads once. The end of a response before its range is a failure.
func (s *stream) attempt(dst []byte) (int, error) {
	if s.body == nil {
		if err := s.open(); err != nil {
			return 0, err
		}
		if s.body == nil {
			return 0, io.EOF // an empty file
		}
	}
	if s.end-s.at < int64(len(dst)) {
		dst = dst[:s.end-s.at]
	}
	s.dog.Reset(stall)
	n, err := s.body.Read(dst)
	s.dog.Stop()
	s.at, s.got = s.at+int64(n), s.got+int64(n)
	if n == 0 && err != nil {
		err = &failure{cause: "the connection broke at byte " + strconv.FormatInt(s.at, 10), wait: -1}
	} else {
		err = nil
	}
	if s.at == s.end && s.end > 0 { // the end of the response is read, so that its connection can be used again
		var one [1]byte
		s.dog.Reset(stall)
		s.body.Read(one[:])
		s.Close()
	}
	return n, err
}

// open requests the rest of the range; of a small file that a server sends only whole, all of it. The file must be the
// one that was seen before.
func (s *stream) open() error {
	f := s.f
	ctx, cancel := context.WithCancel(f.dir.c.Context)
	p, err := f.dir.o.fetch(ctx, f.dir.c, f.name, s.at, s.end)
	if s.small && errors.Is(err, errWhole) {
		p, err = f.dir.o.fetch(ctx, f.dir.c, f.name, 0, s.end)
		if err == nil && p.body != nil {
			if _, err = io.CopyN(io.Discard, p.body, s.at); err != nil {
				p.body.Close()
				err = &failure{cause: "the connection broke again", wait: -1}
			}
		}
	}
	if err == nil {
		err = f.seen(p)
	}
	if err != nil {
		cancel()
		return err
	}
	if s.end < 0 || s.end > p.size {
		s.end = p.size
	}
	s.body, s.cancel, s.dog = p.body, cancel, time.AfterFunc(stall, cancel)
	if p.body == nil {
		s.Close()
	}
	return nil
}

// Close ends a response.
func (s *stream) Close() error {
	if s.cancel == nil {
		return nil
	}
	s.dog.Stop()
	if s.body != nil {
		s.body.Close()
	}
	s.cancel()
	s.body, s.cancel = nil, nil
	return nil
}
