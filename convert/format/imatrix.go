package format

// Imatrix is what a file says of its importance matrix: the importance of each column of a tensor, from
// activations of a text.
type Imatrix struct {
	File    string // as the user named it
	Dataset string // the first text that it was computed of; may be empty
	Entries int    // tensors with importance
	Chunks  int    // pieces of text; 0 if that is not known
}
