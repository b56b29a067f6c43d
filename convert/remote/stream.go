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
	list(c *Client, below string) (list []entry, all bool, err error)
	// fetch requests the bytes of a file from offset on, up to the one before end; all of them if
	// end is negative.
	fetch(ctx context.Context, c *Client, file string, offset, end int64) (*part, error)
	// key names the state of all files for ever, for a cache; "" if nothing does.
	key() string
}

// entry is a file of a listing.
type entry struct {
	Name     string `json:"name"`
	Size     int64  `json:"size"`     // in bytes; -1 if the listing does not have it
	Identity string `json:"identity"` // another one means other bytes; "" if the listing does not have it
}

// part is an answer to fetch.
type part struct {
	body     io.ReadCloser // from offset on; nil if the file ends before
	size     int64         // of the whole file; -1 if the server does not say it
	identity string        // of the file's bytes; "" if the server has none
}

var contentRange = regexp.MustCompile(`^bytes (?:([0-9]+)-([0-9]+)|\*)/([0-9]+)$`)

// readPart checks that a response has the range that was asked for.
func readPart(resp *http.Response, offset, end int64) (*part, error) {
	p := &part{body: resp.Body, identity: identityOf(resp.Header), size: resp.ContentLength}
	if err := p.check(resp, offset, end); err != nil {
		resp.Body.Close()
		return nil, err
	}
	return p, nil
}

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

func (p *part) check(resp *http.Response, offset, end int64) error {
	wrong := func(what string) *failure {
		f := final(fmt.Sprintf("the server sends %s, where bytes %d-%d were asked for", what, offset, end-1))
		f.hint = "dsmoe reads files by ranges, which this server does not give; download the files"
		return f
	}
	switch {
	case resp.Header.Get("Content-Encoding") != "" && !strings.EqualFold(resp.Header.Get("Content-Encoding"), "identity"):
		return wrong("a compressed file")
	case resp.StatusCode == http.StatusOK && offset > 0:
		f := wrong("the whole file")
		f.is = errWhole
		return f
	case resp.StatusCode == http.StatusOK:
		return nil
	}
	header := resp.Header.Get("Content-Range")
	m := contentRange.FindStringSubmatch(header)
	if m == nil {
		return wrong("the range " + text.Quote(header))
	}
	size, err := strconv.ParseInt(m[3], 10, 64)
	if err != nil {
		return wrong("the range " + text.Quote(header))
	}
	p.size = size
	if resp.StatusCode == http.StatusRequestedRangeNotSatisfiable {
		resp.Body.Close()
		p.body = nil
		if offset < size {
			return wrong("no range")
		}
		return nil
	}
	last := size - 1
	if end >= 0 {
		last = min(last, end-1)
	}
	if m[1] != strconv.FormatInt(offset, 10) || m[2] != strconv.FormatInt(last, 10) {
		return wrong("the range " + text.Quote(header))
	}
	return nil
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

// Read reads, and asks again for what breaks off. Errors are of type *problem.Error.
func (s *stream) Read(dst []byte) (int, error) {
	since := time.Now()
	for {
		if s.end >= 0 && s.at >= s.end {
			return 0, io.EOF
		}
		n, err := s.attempt(dst)
		if n > 0 || err == io.EOF {
			return n, err
		}
		if err != nil {
			if err = s.again(err, since); err != nil {
				return 0, about(s.f.path(), err)
			}
		}
	}
}

// progress is the bytes after which a response that breaks off counts as a step forward: the rest is asked
// for at once.
const progress = 512

// again prepares for another try, or returns the error. No byte came since then.
func (s *stream) again(err error, since time.Time) error {
	s.Close()
	got := s.got
	if s.got = 0; got >= progress {
		s.tries = 0
		s.f.dir.c.tell(s.f.path(), err.Error()+"; asking for the rest", time.Since(since))
		return s.f.dir.c.Context.Err()
	}
	s.tries++
	return s.f.dir.c.pause(s.f.path(), err, s.tries, since)
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

// open requests the rest of the range. The file must be the one that was seen before.
func (s *stream) open() error {
	ctx, cancel := context.WithCancel(s.f.dir.c.Context)
	p, err := s.fetch(ctx)
	if err == nil {
		err = s.f.seen(p)
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

// fetch requests the rest of the range; of a small file that a server sends only whole, all of it.
func (s *stream) fetch(ctx context.Context) (*part, error) {
	p, err := s.f.dir.o.fetch(ctx, s.f.dir.c, s.f.name, s.at, s.end)
	if !s.small || !errors.Is(err, errWhole) {
		return p, err
	}
	p, err = s.f.dir.o.fetch(ctx, s.f.dir.c, s.f.name, 0, s.end)
	if err == nil && p.body != nil {
		if _, err = io.CopyN(io.Discard, p.body, s.at); err != nil {
			p.body.Close()
			err = &failure{cause: "the connection broke again", wait: -1}
		}
	}
	return p, err
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
