package remote

// Reads that follow each other, such as the tiles of a tensor, share one response: the next bytes are on
// their way while the last ones are worked on.

import (
	"io"
	"slices"
	"sync"
)

const (
	leastRun = 1 << 20         // of a response for several reads
	runBytes = 64 << 20        // of the range that such reads ask for
	runReads = 2 << 20         // of reads that are requested one by one: large, and perhaps of several readers in turn
	maxRuns  = connections / 2 // responses that wait to be read on: the other connections remain free
)

// runs are the responses that wait to be read on.
type runs struct {
	mu   sync.Mutex
	ends [64]place // where the last reads ended
	last int       // index in ends of the place that is replaced
	open []*stream // oldest first
}

// place is a byte of a file.
type place struct {
	of *file
	at int64
}

// takeRun returns the response whose next byte is at offset or, if an earlier read ended there, a new one;
// nil if neither is so, and for many bytes.
func (c *Client) takeRun(f *file, offset, n int64) (s *stream) {
	r := &c.runs
	r.mu.Lock()
	defer r.mu.Unlock()
	follows := slices.Contains(r.ends[:], place{f, offset})
	r.ends[r.last], r.last = place{f, offset + n}, (r.last+1)%len(r.ends)
	i := slices.IndexFunc(r.open, func(s *stream) bool { return s.f == f && s.at == offset })
	switch {
	case n >= runReads:
		return nil
	case i >= 0:
		s = r.open[i]
		r.open = slices.Delete(r.open, i, i+1)
	case follows:
		s = f.run(offset)
	}
	return s
}

// run is a response that begins at offset. It ends with a tensor, since what a server sends beyond what is read
// is lost.
func (f *file) run(offset int64) *stream {
	end := min(offset+runBytes, f.Size())
	if i, _ := slices.BinarySearch(f.ends, offset+leastRun); i < len(f.ends) {
		end = min(end, f.ends[i])
	}
	return &stream{f: f, at: offset, end: end}
}

// readRun fills dst from s, and keeps the rest of the response for the next read.
func (c *Client) readRun(s *stream, dst []byte) error {
	for {
		n, err := io.ReadFull(s, dst)
		if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
			return err
		}
		if dst = dst[n:]; len(dst) == 0 {
			break
		}
		s = s.f.run(s.at)
	}
	r := &c.runs
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.at < s.end {
		r.open = append(r.open, s)
	}
	if len(r.open) > maxRuns {
		r.open[0].Close()
		r.open = slices.Delete(r.open, 0, 1)
	}
	return nil
}

// closeRuns ends the responses of a file.
func (c *Client) closeRuns(f *file) {
	r := &c.runs
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open = slices.DeleteFunc(r.open, func(s *stream) bool {
		if s.f == f {
			s.Close()
		}
		return s.f == f
	})
}
