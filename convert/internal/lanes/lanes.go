// Package lanes computes the SHA-256 of many independent streams at once. A Digest
// is one SHA-256 under way; the goroutines that Enter a Pool and Write to digests
// through it share the lanes of vector registers, one stream in each, where the
// processor has registers wide enough and no faster way.
//
// The sums are plain SHA-256, and a state is encoded as crypto/sha256 does. Streams
// that are hashed alone are left to crypto/sha256.
package lanes

import (
	"crypto/sha256"
	"sync"
)

// Pool brings together what several goroutines hash.
type Pool struct {
	im    *implementation
	procs int // sets hashed at once, at most

	mu      sync.Mutex
	entered int    // goroutines
	inside  int    // of them in Write, in the queue or in a set being hashed
	leading int    // of those, hashing a set; the others wait
	queue   []*job // in no set
}

// job is what is left to hash of a Write.
type job struct {
	d *Digest
	b []byte

	// lead gives the job's goroutine a set to hash, which then includes the job,
	// or nil when it is to go on alone.
	lead chan []*job
}

// worth is the number of bytes from which a Write shares lanes.
const worth = 4 << 10

// NewPool returns a pool that no goroutine has entered, for so many processors.
func NewPool(processors int) *Pool { return newPool(best, processors) }

func newPool(im *implementation, processors int) *Pool { return &Pool{im: im, procs: processors} }

// Enter says that a goroutine begins which will call Write. Others may wait in
// Write for it from then on, so it must not wait for any of them before it Leaves.
func (p *Pool) Enter() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.entered++
}

// Leave says that a goroutine that has entered ends. It may Enter again.
func (p *Pool) Leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.entered--
	p.form()
}

// Write absorbs b into d; then b may be used again. It may wait for other
// goroutines to bring streams for the lanes left, but only while one that has
// entered is not waiting in Write itself, and never where crypto/sha256 is the
// fastest way. Digests that are written to at the same time must differ.
func (p *Pool) Write(d *Digest, b []byte) {
	if p.im.lanes > 0 && len(b) >= worth {
		if n := d.partial(); n > 0 {
			d.Write(b[:len(d.x)-n])
			b = b[len(d.x)-n:]
		}
		b = p.share(d, b)
	}
	d.Write(b)
}

// share absorbs whole blocks of b in lanes and returns what it leaves.
func (p *Pool) share(d *Digest, b []byte) []byte {
	j := &job{d, b, make(chan []*job, 1)}
	p.mu.Lock()
	p.inside++
	p.queue = append(p.queue, j)
	p.form()
	p.mu.Unlock()
	for set := range j.lead {
		if set == nil {
			break
		}
		p.im.hash(set)
		p.disband(set)
	}
	return j.b
}

// form makes sets of the queue and hands each to one of its goroutines to hash: a
// set of all lanes at once, one of more than half of them when nobody is left who
// could add to it, a smaller one only when nobody leads either, since those who are
// being hashed soon come again. p.mu is held.
func (p *Pool) form() {
	for p.leading < p.procs {
		n := min(len(p.queue), p.im.lanes)
		switch {
		case n == 0:
			return
		case n == p.im.lanes:
		case p.inside < p.entered:
			return
		case p.leading > 0 && n <= p.im.lanes/2:
			return
		case n <= p.im.few:
			p.release(p.queue)
			p.queue = nil
			return
		}
		set := p.queue[:n:n]
		p.queue = p.queue[n:]
		p.leading++
		set[n-1].lead <- set // the last to come runs already
	}
}

// release lets goroutines go on alone. p.mu is held.
func (p *Pool) release(jobs []*job) {
	p.inside -= len(jobs)
	for _, j := range jobs {
		j.lead <- nil
	}
}

// disband lets those go whose whole blocks are hashed and queues the others again.
func (p *Pool) disband(set []*job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leading--
	var done, rest []*job
	for _, j := range set {
		if len(j.b) < sha256.BlockSize {
			done = append(done, j)
		} else {
			rest = append(rest, j)
		}
	}
	p.queue = append(rest, p.queue...)
	p.release(done)
	p.form()
}
