// Package text holds the renderers that all reports and errors of the module share: foreign
// text made safe to print (Quote, Word, Literal, Line), counts and sizes (Plural, Grouped,
// Bytes, ExactBytes, Percent), ranges of numbers (Ranges; Spans reads them), globs (CheckGlob), the order of tensor
// names (CompareNames), tables with aligned columns (Table) and with named columns (Sheet: TSV,
// CSV and Markdown too). It knows no models, imports no package of the module and prints nothing.
package text
