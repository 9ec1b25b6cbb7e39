#ifndef PENSTOCK_PYTHON_SITE_H
#define PENSTOCK_PYTHON_SITE_H

/* Notes the calling thread's Python frames, innermost first, as
 * "file.py:LINE function < ...": nothing without an interpreter. Takes the
 * interpreter's lock, so call it with no other lock held. */
void penstock_python_note_site(void);

/* What this thread noted last, "" when nothing. Valid until the next note. */
const char *penstock_python_site(void);

#endif
