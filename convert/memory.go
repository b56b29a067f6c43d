package convert

// paged is a weight file whose pages can be fetched ahead and let go.
type paged interface {
	WillNeed(data []byte) bool
	DontNeed(data []byte) bool
}

// WillNeed tells the system that a part of a tensor's view is about to be read.
func (c *Checkpoint) WillNeed(data []byte) { c.advise(data, paged.WillNeed) }

// DontNeed tells it that a part is not read for a while, so that its pages need not
// stay in memory. Views stay valid.
func (c *Checkpoint) DontNeed(data []byte) { c.advise(data, paged.DontNeed) }

func (c *Checkpoint) advise(data []byte, advice func(paged, []byte) bool) {
	for _, f := range c.files {
		if p, ok := any(f).(paged); ok && advice(p, data) {
			return
		}
	}
}
