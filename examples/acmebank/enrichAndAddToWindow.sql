-- The transfer, with what its sender sent before and the delayed read has not taken away yet.
SELECT
  $id,
  $sender,
  $recipient,
  $amount,
  (
    SELECT json_group_array(json_object('id', id, 'recipient', recipient, 'amount', amount) ORDER BY id)
    FROM window
    WHERE sender = $sender
  ) AS window;

INSERT INTO window (sender, id, recipient, amount) VALUES ($sender, $id, $recipient, $amount);
