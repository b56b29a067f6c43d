package remote

// Reads that follow each other, such as the tiles of a tensor, share one response: the next bytes are on
// their way while the last ones are worked on.

import (
	"io"
	"slices"
	"sync"
)

const (
	jobBytes  = 8 << 20         // of the pieces of a tensor that workers take, see weights.Weight.Jobs
	runBytes  = 64 << 20        // of the range that such reads ask for
	runReads  = 2 << 20         // of reads that are requested one by one: large, and perhaps of several readers in turn
	maxRuns   = connections / 2 // responses for several reads: the other connections remain free
	forgotten = 1024            // reads of others after which a response that waits is closed
)

// runs are the responses that wait to be read on.
type runs struct {
	mu   sync.Mutex
	ends [64]place // where the last reads ended
	last int       // index in ends of the place that is replaced
	open []*stream // the one that waits longest first
	busy int       // that are read on
	n    int       // calls of takeRun
}

// place is a byte of a file.
type place struct {
	of *file
	at int64
}

// takeRun returns the response whose next byte is at offset or, if an earlier read ended there, a new one; nil if neither
// is so, and for many bytes. Few bytes, such as scales beside their weight, begin none: it would be cut.
func (c *Client) takeRun(f *file, offset, n int64) (s *stream) {
	r := &c.runs
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n++
	follows := slices.Contains(r.ends[:], place{f, offset})
	if n > fewBytes {
		r.ends[r.last], r.last = place{f, offset + n}, (r.last+1)%len(r.ends)
	}
	i := slices.IndexFunc(r.open, func(s *stream) bool { return s.f == f && s.at == offset })
	switch {
	case n >= runReads:
		return nil
	case i >= 0:
		s = r.open[i]
		r.open = slices.Delete(r.open, i, i+1)
		r.busy++
	case follows && n > fewBytes:
		// The response that waits longest makes room if it is forgotten. More readers in turn than maxRuns would cut each
		// other's responses.
		if len(r.open) > 0 && len(r.open)+r.busy >= maxRuns && r.n-r.open[0].waits > forgotten {
			r.open[0].Close()
			r.open = slices.Delete(r.open, 0, 1)
		}
		if len(r.open)+r.busy < maxRuns {
			s = f.run(offset)
			r.busy++
		}
	}
	return s
}

// run is a response that begins at offset. It ends with a tensor, or with a piece of a large one that one worker reads,
// since what a server sends beyond what is read is lost.
func (f *file) run(offset int64) *stream {
	end := min(offset+runBytes, f.Size())
	if i, _ := slices.BinarySearch(f.ends, offset+1); i < len(f.ends) {
		start := int64(0)
		if i > 0 {
			start = f.ends[i-1]
		}
		end = min(end, f.ends[i], offset+jobBytes-(offset-start)%jobBytes)
	}
	return &stream{f: f, at: offset, end: end}
}

// readRun fills dst from s, and keeps the rest of the response for the next read.
func (c *Client) readRun(s *stream, dst []byte) error {
	r := &c.runs
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.busy--
		if s.at < s.end && s.body != nil {
			s.waits = r.n
			r.open = append(r.open, s)
		}
	}()
	for {
		n, err := io.ReadFull(s, dst)
		if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
			return err
		}
		if dst = dst[n:]; len(dst) == 0 {
			return nil
		}
		s = s.f.run(s.at)
	}
}
